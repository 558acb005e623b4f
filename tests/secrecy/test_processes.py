"""Secrets and real processes: kill -9, another value afterwards, the command line, and HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from onward import Onward
from tests.kit import eventually, not_memory, only_file
from tests.secrecy.kit import database_bytes, hits
from tests.server.conftest import serving

ROOT = Path(__file__).parents[2]
OLD, NEW = "sk_live_old-0123456789", "sk_live_new-9876543210"
REF = {"$secret": "STRIPE_KEY"}


def onward(url: str, *words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "onward", "--db", url, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "ONWARD_LEASE_S": "1", "ONWARD_HEARTBEAT_S": "0.2", **environment},
    )


@pytest.mark.slow
@not_memory
async def test_after_kill_9_the_task_continues_with_the_current_value(url: str, tmp_path: Path) -> None:
    app, diary = Onward(url), tmp_path / "diary"
    async with app:
        (task_id,) = [json.loads(line)["task_id"] for line in await _submitted(url)]
        dead = onward(url, "worker", "tests.secrecy.vault:app", STRIPE_KEY=OLD, DIARY=str(diary), DIE="yes")
        first, _ = await asyncio.to_thread(dead.communicate)
        assert dead.returncode == -9
        alive = onward(url, "worker", "tests.secrecy.vault:app", STRIPE_KEY=NEW, DIARY=str(diary))
        try:
            task = await app.service.wait(task_id, 30)
        finally:
            alive.terminate()
            second, _ = await asyncio.to_thread(alive.communicate)
        both = "[secret STRIPE_KEY] and [secret SESSION]"
        assert task.result == [*[f"{amount} with {both}" for amount in (1, 2, 3)], REF]
        data = database_bytes(app)
    lines = diary.read_text(encoding="utf-8").splitlines()
    assert lines == [
        f"login {OLD}",
        *[f"charge session-for-22 {OLD} {amount}" for amount in (1, 2)],
        f"login {NEW}",  # the secret that it made was in memory only
        *[f"charge session-for-22 {NEW} {amount}" for amount in (2, 3)],
    ]
    for value in (OLD, NEW, "session-for-22"):
        assert hits(data, value) == []
    assert "charged 1 with" in first, "functions may print a value; logs may not contain it"
    assert (
        hits(
            second.replace(f"charged 3 with {NEW} and session-for-22", "").replace(
                f"charged 2 with {NEW} and session-for-22", ""
            ),
            NEW,
        )
        == []
    )


async def _submitted(url: str) -> list[str]:
    """Submitted by a process that knows neither the code nor the value: a worker has registered the names that are allowed."""
    offering = onward(url, "worker", "tests.secrecy.vault:app", "--queues", "nothing")
    submit = None
    try:

        async def accepted() -> bool:
            nonlocal submit
            process = onward(url, "submit", "pay", json.dumps({"key": REF}), "--json")
            submit, _ = await asyncio.to_thread(process.communicate)
            return process.returncode == 0

        await eventually(accepted, 60)
        for bad, words in {"in-clear-text": "clear text", "": "no secret is named 'HOME'"}.items():
            value: Any = bad or {"$secret": "HOME"}
            refused = onward(url, "submit", "pay", json.dumps({"key": value}))
            out, _ = await asyncio.to_thread(refused.communicate)
            assert refused.returncode == 2
            assert words in out
            assert "in-clear-text" not in out
    finally:
        offering.terminate()
        await asyncio.to_thread(offering.communicate)
    assert submit is not None
    return [submit]


@pytest.mark.slow
@only_file
async def test_the_doctor_finds_values_written_before_they_were_secret(url: str) -> None:
    app = Onward(url, poll_s=0.05)

    @app.task
    async def old(ctx: Any, text: str) -> str:
        ctx.keep(f"kept {text}")
        await ctx.artifact(f"left {text}")
        return text

    async with app, app.worker():
        task = await app.submit(old, f"with {OLD}", labels={"who": "me"})
        await task.result("60s")
    for value, status, words in ((OLD, 1, f"task {task.id}: its input holds STRIPE_KEY"), (NEW, 0, "none is there")):
        process = onward(url, "doctor", "secrets", "tests.secrecy.vault:app", STRIPE_KEY=value)
        out, _ = await asyncio.to_thread(process.communicate)
        assert process.returncode == status
        assert words in out
        assert value not in out
    process = onward(url, "doctor", "secrets", "tests.secrecy.vault:app", "--json", STRIPE_KEY=OLD)
    report = json.loads((await asyncio.to_thread(process.communicate))[0])
    places = sorted(leak["where"].split(" ")[0] for leak in report["leaks"])
    assert places == ["contents", "contents", "its", "record"]
    process = onward(url, "doctor", "secrets", "tests.secrecy.vault:app")
    out, _ = await asyncio.to_thread(process.communicate)
    assert process.returncode == 1
    assert "STRIPE_KEY was not searched for" in out


async def test_over_http_a_reference_is_taken_and_a_clear_text_refused(
    app: Onward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRIPE_KEY", OLD)
    app.secret("STRIPE_KEY")

    @app.task
    async def pay(ctx: Any, key: SecretStr) -> str:
        return f"paid with {key.get_secret_value()}"

    async with app.worker(), serving(app) as address, httpx2.AsyncClient(base_url=address) as client:
        for bad, code in (("in-clear-text", "invalid_input"), ({"$secret": "PATH"}, "unknown_secret")):
            answer = await client.post("/api/tasks", json={"task": "pay", "input": {"key": bad}})
            assert (answer.status_code, answer.json()["code"]) == (422, code)
            assert "in-clear-text" not in answer.text
        answer = await client.post("/api/tasks", json={"task": "pay", "input": {"key": REF}})
        assert answer.status_code in {200, 201, 202}
        task = await app.service.wait(answer.json()["task_id"], 20)
        shown = await client.get(f"/api/tasks/{task.task_id}")
    assert task.result == "paid with [secret STRIPE_KEY]"
    assert OLD not in shown.text
