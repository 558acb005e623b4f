"""The examples run: the state of the contract, the deploys of a Friday, the agent with its disk, and retries."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples import again, disk, friday, staging
from onward import Onward, State
from onward.agent.models.scripted import ScriptedModel
from onward.cli.args import parser
from onward.core import record as r
from onward.core.state import AgentState
from onward.testing import MemoryApp, crashes, drain, memory_app

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")
STATE = (ROOT / "examples" / "agent_state.json").read_text(encoding="utf-8")


async def journal(app: Onward, task_id: str, kind: str) -> list[r.Record]:
    return [record for record in await app.service.journal(task_id) if record.kind == kind]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_run_by_a_test_and_its_commands_exist(path: Path) -> None:
    tests = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "tests").rglob("test_*.py"))
    assert re.search(rf"from examples import .*\b{path.stem}\b", tests)
    text = path.read_text(encoding="utf-8")
    known = parser.build()._subparsers._group_actions[0].choices  # type: ignore[union-attr, index]
    commands = re.findall(r"onward ([a-z]+) ", text.partition('"""')[2].partition('"""')[0])
    assert commands
    assert set(commands) <= set(known)  # type: ignore[arg-type]
    assert all(module == path.stem for module in re.findall(r"examples\.(\w+):app", text))


# ── the state ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_state_loads_exactly_and_comes_back() -> None:
    state = AgentState.model_validate_json(STATE)
    document = json.loads(state.model_dump_json(exclude_none=True))
    assert document.pop("version") == 1
    assert document == json.loads(STATE)
    assert AgentState.model_validate(document) == state


@pytest.mark.slow
async def test_a_task_begins_with_that_state_and_goes_on_with_it_whatever_is_killed() -> None:
    async for app in crashes(staging.app):
        staging.CLUSTER.clear()
        task = await app.submit("staging", json.loads(STATE))
        await drain(app)
        (ask,) = await app.asks()
        assert ask.text == "Which namespace should we deploy to?"
        await app.answer(ask.id, "team-x")
        await drain(app)
        (ask,) = await app.asks()
        assert (ask.text, ask.risk) == ("Apply changes: X in team-x?", "external_action")
        assert staging.CLUSTER == {}, "nothing happens before the yes"
        await app.decide(ask.id, "approve")
        await drain(app)
        ended = AgentState.model_validate(await task.result())
        assert staging.CLUSTER == {"team-x/X": "v2"}, app.killed_at
        assert (ended.plan, ended.open_questions) == ((), ())
        assert [fact.key for fact in ended.known_facts] == [
            "service",
            "Which namespace should we deploy to?",
            "Check current status",
            "Collect config",
            "Apply changes",
            "Verify again",
        ]
        assert ended.fact("Verify again") == "X in team-x is at v2"
        assert ended.artifacts == AgentState.model_validate_json(STATE).artifacts


# ── the agent ────────────────────────────────────────────────────────────────────────────────────────────────────────

SCRIPT: Any = [
    [("check_disk", {})],
    [("clean_logs", {"keep": 1})],
    lambda request: f"Done: {request.conversation[-1]['content']}.",
]


@pytest.mark.slow
@pytest.mark.parametrize(("decision", "left"), [("approve", 2), ("deny", 4)])
async def test_the_agent_and_its_disk(
    decision: str, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGS", str(tmp_path))
    assert "devops" in disk.app.handlers
    async for app in crashes():
        for name in ("shop.log", "shop.log.1", "shop.log.2", "shop.log.3"):
            (tmp_path / name).write_text("x" * 1000)
        tools = [disk.check_disk, disk.clean_logs]
        devops = app.agent("devops", model=ScriptedModel(SCRIPT), tools=tools, approve=["write_local"])
        task = await app.submit(devops, "I'm out of disk space. Fix it.")
        await drain(app)
        (ask,) = await app.asks()
        assert ask.data["arguments"] == {"keep": 1}
        assert len(os.listdir(tmp_path)) == 4
        await app.decide(ask.id, decision, reason="not now")
        await drain(app)
        answer = await task.result()
        assert answer.startswith("Done: deleted" if decision == "approve" else "Done: denied: not now"), app.killed_at
        assert len(os.listdir(tmp_path)) == left
        assert (tmp_path / "shop.log").exists()


# ── Friday evening ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_hotfix_goes_first_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRIDAY", str(tmp_path / "friday.log"))
    app = memory_app(friday.app)
    async with app:
        tasks = await friday.evening(app)
        assert [task.id for task in await friday.evening(app)] == [task.id for task in tasks], "sent twice is sent once"
        await drain(app)
        assert [await task.result() for task in tasks[:2]] == ["hotfix:latest is live", "service-0:latest is live"]
        assert {(await task.get()).state for task in tasks} == {State.COMPLETED}
    assert "hotfix" in friday.live()[: app.settings.slots]
    assert sorted(friday.live()) == sorted(["hotfix", *(f"service-{n}" for n in range(200))])


@pytest.mark.slow
def test_friday_as_a_program(tmp_path: Path) -> None:
    code = "import asyncio\nfrom examples import friday\nasyncio.run(friday.main())"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONWARD_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert re.fullmatch(r"hotfix:latest is live \([0-9] went live before it\)", first)
    assert last == "201 deploys, none lost"


# ── again ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def app() -> Any:
    again.CALLS.clear()
    copy = memory_app(again.app)
    async with copy:
        yield copy


async def test_pauses_grow_and_there_is_none_after_the_last_attempt(app: MemoryApp) -> None:
    task = await app.submit("fetch")
    await drain(app)
    assert await task.result() == "the answer"
    retries = await journal(app, task.id, r.STEP_RETRY)
    assert [round(record.value["due_at"] - record.at) for record in retries] == [1, 2, 4]
    hopeless = await app.submit("fetch", 99)
    await drain(app)
    failed = await hopeless.get()
    assert failed.error is not None
    assert "tried 4 times" in failed.error["message"]
    assert "the service is away" in failed.error["message"]
    assert len(await journal(app, hopeless.id, r.STEP_RETRY)) == 3


async def test_the_same_key_is_done_once(app: MemoryApp, tmp_path: Path) -> None:
    path = str(tmp_path / "report.txt")
    for _ in range(3):
        task = await app.submit("create", path, key="report")
        await drain(app)
        assert await task.result() == path
    assert again.CALLS == ["write"]
    assert again.write_if_missing(path, "something else").endswith("is there")
    assert (tmp_path / "report.txt").read_text() == "a report\n"


async def test_a_resume_goes_on_from_the_step_that_failed(app: MemoryApp, tmp_path: Path) -> None:
    task = await app.submit("publish", str(tmp_path / "report.txt"))
    await drain(app)
    assert (await task.get()).state is State.FAILED
    (tmp_path / "paper").touch()
    await app.resume(task.id)
    await drain(app)
    assert str(await task.result()).endswith("is printed")
    assert again.CALLS == ["write", "print", "print"]
