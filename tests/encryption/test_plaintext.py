"""With encryption on, values of users are nowhere in clear: not in the database, its log, the artifacts or the log lines."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onward import Onward, Retry, State
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.core.encryption import DataKey
from onward.store.shared import codec
from tests.kit import eventually, not_memory, only_file
from tests.service.letters import bury
from tests.sinks.conftest import SECRET
from tests.sinks.receiver import Receiver

PLANTED = 50


class Plants:
    """Strings that no other place has, each named after the place that it is planted in."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self._numbers = itertools.count()

    def __call__(self, place: str) -> str:
        self.values.append(f"Planted{next(self._numbers):03}{place.title().replace(' ', '')}")
        return self.values[-1]

    def found_in(self, data: bytes) -> list[str]:
        return [value for value in self.values if value.encode() in data]


def handlers(app: Onward, plant: Plants) -> None:
    """Handlers that leave values in every kind of payload."""
    seen: list[int] = []
    step_results = [plant("step result") for _ in range(10)]
    retried, thrown, asked = plant("step error"), plant("task error"), plant("question")
    what, data, artifact, kept = plant("approval"), plant("approval data"), plant("artifact"), plant("content")
    checkpoint, progress = plant("checkpoint"), [plant("progress") for _ in range(3)]
    child_input, child_result, result = plant("child input"), plant("child result"), plant("result")

    async def give(value: str) -> str:
        return value

    async def fail_once() -> str:
        if not seen:
            seen.append(1)
            raise ValueError(retried)
        return "done"

    @app.task
    async def child(ctx: Any, value: str) -> str:
        return child_result

    @app.task(retry=Retry(2, first=0.01))
    async def fails(ctx: Any, value: str) -> None:
        raise RuntimeError(thrown)

    @app.task
    async def work(ctx: Any, value: list[str]) -> dict[str, str]:
        for text in step_results:
            await ctx.step(give, text)
        for text in progress:
            ctx.progress(text)
        await ctx.step(fail_once, retry=Retry(3, first=0.01))
        await ctx.artifact(artifact)
        name = ctx.keep(kept)
        await ctx.step(give, name)
        started = await ctx.submit(child, child_input)
        await started.result()
        await ctx.signal("go")
        await ctx.ask(asked)
        await ctx.approve(what, data={"more": data})
        await ctx.checkpoint({"at": checkpoint})
        await ctx.sleep(0.01)
        return {"result": result}


def agent(app: Onward, plant: Plants) -> Any:
    said, found, argument = plant("agent answer"), plant("tool result"), plant("tool argument")

    @tool
    async def look(path: str) -> str:
        """Look."""
        return found

    fact = {"key": "who", "value": plant("fact"), "source": "user"}
    script: Any = [
        [("update_plan", {"plan": [plant("plan")]}), ("record_fact", fact)],
        [("look", {"path": argument})],
        said,
    ]
    return app.agent("helper", model=ScriptedModel(script), tools=[look], instructions=plant("instructions"))


async def live(app: Onward, plant: Plants, hook: str) -> list[str]:
    """Submit tasks, and answer all that they ask; the ids of tasks that have ended."""
    async with app.worker():
        value = [plant("input") for _ in range(12)]
        handle = await app.submit("work", value, webhook=hook)
        await app.signal(handle.id, "go", plant("signal"))
        early = await app.submit("work", value[:1], delay="30d")
        await app.signal(early.id, "go", plant("unread signal"))
        (question,) = await eventually(lambda: app.asks("question"), 20)
        await app.answer(question.id, plant("answer"))
        (approval,) = await eventually(lambda: app.asks("approval"), 20)
        await app.decide(approval.id, "approve", reason=plant("reason"), by="ann")
        failed = await app.submit("fails", plant("input of a failure"), webhook=hook)
        helped = await app.submit("helper", plant("goal"))
        await asyncio.gather(handle.result(30), app.service.wait(failed.id, 30), helped.result(30))
        await eventually(lambda: _delivered(app), 20)
        await bury(app, plant("letter").encode(), reason=plant("letter reason"), headers={"x": plant("letter header")})
        fork = await app.fork(handle.id, input=[plant("input of a fork")])
        await fork.cancel()
        return [handle.id, failed.id, helped.id]


async def _delivered(app: Onward) -> bool:
    rows, _ = await app.deliveries(state="delivered")
    return len(rows) >= 2


def dump(url: str) -> bytes:
    """All bytes of the database: the files of SQLite with the log, or all tables and the log of PostgreSQL."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        # By another process: this one would lose SQLite's locks when it closes the file.
        return subprocess.run(["cat", *path.parent.glob(f"{path.name}*")], capture_output=True, check=True).stdout
    parts: list[bytes] = []
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'onward%'").fetchall()
        for (table,) in tables:
            with connection.cursor().copy(f"COPY {table} TO STDOUT (FORMAT BINARY)") as copy:  # type: ignore[arg-type]
                parts += [bytes(part) for part in copy]
        (folder,) = connection.execute("SELECT current_setting('data_directory')").fetchone() or ("",)
    return b"".join([*parts, *[part.read_bytes() for part in Path(folder, "pg_wal").glob("0*")]])


def content(folder: Path) -> bytes:
    return b"".join(part.read_bytes() for part in folder.rglob("*") if part.is_file())


class Lines(logging.Handler):
    """All log lines, with their traces."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += logging.Formatter().format(record) + "\n"


@contextlib.contextmanager
def logged() -> Iterator[Lines]:
    lines, logger = Lines(), logging.getLogger("onward")
    logger.addHandler(lines)
    before, logger.level = logger.level, logging.DEBUG
    try:
        yield lines
    finally:
        logger.level = before
        logger.removeHandler(lines)


async def leaks(url: str, folder: Path, **settings: Any) -> tuple[Plants, dict[str, list[str]], Onward, list[str]]:
    """Live once, and look for the planted values."""
    plant = Plants()
    options = {"lease_s": 2.0, "heartbeat_s": 0.2, "poll_s": 0.05, "webhook_allow_private": "127.0.0.0/8", **settings}
    app = Onward(url, artifacts=f"file://{folder}", webhook_secret=SECRET, **options)
    handlers(app, plant)
    agent(app, plant)
    app.schedule("yearly", "work", [plant("input of a schedule")], cron="0 0 1 1 *")
    receiver = Receiver()
    with logged() as lines:
        async with receiver.open(), app:
            ids = await live(app, plant, receiver.url())
            database = dump(url)
    files = {"database": database, "artifacts": content(folder), "logs": lines.text.encode()}
    found = {name: plant.found_in(data) for name, data in files.items()}
    return plant, found, app, ids


@not_memory
async def test_no_planted_value_is_stored_or_logged_in_clear(url: str, tmp_path: Path) -> None:
    plant, found, app, ids = await leaks(url, tmp_path / "artifacts")
    assert len(plant.values) >= PLANTED
    assert found == {"database": [], "artifacts": [], "logs": []}
    async with app:
        assert [(await app.get(task_id)).state for task_id in ids] == [State.COMPLETED, State.FAILED, State.COMPLETED]
        readable = b"".join([b"".join(r.data for r in await app.service.journal(task_id)) for task_id in ids])
    assert len(plant.found_in(readable)) > 20, "who has the key reads them"


@only_file
@pytest.mark.parametrize(
    "place", ["input/", "record/", "message/", "content/", "body/", "schedule/", "letter/", "letter-reason/"]
)
async def test_the_search_finds_a_payload_that_is_not_sealed(
    place: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal = codec._seal

    def leaky(key: DataKey, scope: str, where: bytes, data: bytes) -> bytes:
        return data if where.startswith(place.encode()) else seal(key, scope, where, data)

    monkeypatch.setattr(codec, "_seal", leaky)
    _, found, _, _ = await leaks(url, tmp_path / "artifacts")
    assert any(found.values())
