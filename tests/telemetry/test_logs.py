"""Logs: every line inside a task names the task, from any logger and on any thread."""

from __future__ import annotations

import io
import json
import logging
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace

from onward import Onward, Retry
from onward.config import load
from onward.engine.context.secrets import learn
from onward.errors import BadSetting
from onward.logging import FIELDS, JsonLines, LogContext, where
from onward.service.submission import SubmitRequest
from rig.processes import Child
from tests.cli.conftest import ROOT
from tests.kit import Lab
from tests.telemetry.conftest import Spans

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
user = logging.getLogger("shop.orders")


class Lines:
    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    @property
    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]

    def with_message(self, message: str) -> dict[str, Any]:
        (line,) = [line for line in self.all if line["message"] == message]
        return line

    def by(self, logger: str) -> list[tuple[str, str]]:
        return [(line["level"], line["message"]) for line in self.all if line["logger"] == logger]


@pytest.fixture
def lines() -> Iterator[Lines]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield Lines(stream)
    root.removeHandler(handler)
    root.setLevel(level)


# ── where a line comes from ──────────────────────────────────────────────────────────────────────────────────────────


async def test_async_and_plain_handlers_branches_steps_and_threads(app: Onward, lines: Lines):
    async def quick(n: int) -> None:
        user.info("in step %d", n)

    def in_a_thread(n: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        user.info("in thread %d", n)

    @app.task
    async def work(ctx):
        user.info("in the handler")
        await ctx.step(quick, 1)
        await ctx.gather(ctx.step(quick, 2), ctx.step(in_a_thread, 3))
        user.info("after")

    @app.task
    def plainly(ctx):
        user.info("in the plain handler")
        ctx.step(in_a_thread, 4)
        ctx.step(quick, 5)

    async with app.worker() as worker:
        first, second = await app.submit(work), await app.submit(plainly)
        await first.result(timeout=60)
        await second.result(timeout=60)
        worker_id = worker.id
    steps = {
        "in the handler": None,
        "in step 1": "quick",
        "in step 2": "[gather.0]quick",
        "in thread 3": "[gather.1]in_a_thread",
        "after": None,
        "in the plain handler": None,
        "in thread 4": "in_a_thread",
        "in step 5": "quick",
    }
    for message, step in steps.items():
        line, mine = lines.with_message(message), message in {"in the plain handler", "in thread 4", "in step 5"}
        assert line["task_id"] == (second if mine else first).id
        assert line["task"] == ("plainly" if mine else "work")
        assert (line["shift"], line["attempt"], line["worker"]) == (2, 1, worker_id)
        assert line.get("step") == step
        assert line["logger"] == "shop.orders"


async def test_a_line_outside_of_a_task_names_no_task(lines: Lines):
    user.warning("hello")
    line = lines.with_message("hello")
    assert line.keys() == {"at", "level", "logger", "message"}
    assert where() == {}


async def test_the_trace_is_on_every_line(lab: Lab, lines: Lines, spans: Spans):
    async def step() -> None:
        user.info("in a step")

    @lab.app.task
    async def work(ctx):
        user.info("in the handler")
        await ctx.step(step)

    await lab.start()
    await lab.ended(await lab.submit(work))
    for message, span in (("in the handler", spans.single("invoke")), ("in a step", spans.single("onward.step"))):
        assert lines.with_message(message)["trace_id"] == f"{span.context.trace_id:032x}"
        assert lines.with_message(message)["span_id"] == f"{span.context.span_id:016x}"
    with trace.get_tracer("t").start_as_current_span("mine") as mine:
        user.info("outside")
    assert lines.with_message("outside")["span_id"] == f"{mine.get_span_context().span_id:016x}"


async def test_the_trace_that_came_with_a_task_is_there_without_opentelemetry(lab: Lab, lines: Lines):
    @lab.app.task
    async def work(ctx):
        user.info("in the handler")

    await lab.start()
    (task_id,) = await lab.app.service.submit([SubmitRequest("work", trace={"traceparent": PARENT})])
    await lab.ended(task_id)
    line = lines.with_message("in the handler")
    assert line["trace_id"] == PARENT.split("-")[1]
    assert "span_id" not in line


async def test_a_warning_names_its_task_even_at_the_level_of_warnings(lab: Lab, lines: Lines):
    logging.getLogger().setLevel(logging.WARNING)

    @lab.app.task
    async def work(ctx):
        user.warning("odd")

    await lab.start()
    task_id = await lab.submit(work)
    await lab.ended(task_id)
    assert lines.with_message("odd")["task_id"] == task_id
    assert lines.by("onward.task") == []


# ── the lines of a task ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_life_of_a_task_in_lines(lab: Lab, lines: Lines):
    tries: list[int] = []

    @lab.app.task(retry=Retry(attempts=2, first=2.0))
    async def work(ctx):
        await ctx.signal("go")
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("not yet")

    @lab.app.task(retry=1)
    async def fails(ctx):
        raise ValueError("no")

    await lab.start()
    task_id = await lab.submit(work)
    await lab.settled(task_id)
    await lab.app.signal(task_id, "go")
    await lab.ended(task_id)
    failed = await lab.submit(fails)
    await lab.ended(failed)
    lines_of_tasks = [(level, message) for level, message in lines.by("onward.task") + lines.by("onward.shift")]
    mine = f"task {task_id} (work)"
    assert [entry for entry in lines_of_tasks if mine in entry[1]] == [
        ("INFO", f"{mine} started"),
        ("INFO", f"{mine} waits: signal"),
        ("INFO", f"{mine} goes on"),
        ("INFO", f"{mine} goes on"),
        ("INFO", f"{mine} completed"),
        ("WARNING", f"{mine} is tried again: ConnectionError: not yet"),
    ]
    assert ("ERROR", f"task {failed} (fails) failed: ValueError: no") in lines_of_tasks
    assert all(line["task_id"] in line["message"] for line in lines.all if line["logger"] == "onward.task")


async def test_a_task_that_is_handed_back_cancelled_or_lost(lab: Lab, lines: Lines):
    import asyncio

    inside = asyncio.Event()

    async def hangs() -> None:
        inside.set()
        await asyncio.Event().wait()

    @lab.app.task
    async def work(ctx):
        await ctx.step(hangs)

    await lab.start()
    first = await lab.submit(work)
    await lab.clock.until(inside.wait(), 10)
    await lab.stop()
    assert ("INFO", f"task {first} (work) is handed back") in lines.by("onward.task")
    inside.clear()
    await lab.start()
    await lab.clock.until(inside.wait(), 10)
    await lab.app.cancel(first)
    await lab.clock.until(lab.clock.sleep(10), 20)
    assert any("its work here is dropped" in message for _, message in lines.by("onward.shift"))


# ── the lines themselves ─────────────────────────────────────────────────────────────────────────────────────────────


def test_every_line_is_json(lines: Lines):
    circle: list[Any] = []
    circle.append(circle)
    user.info("extra", extra={"order": 7, "task": "mine", "odd": {1, 2}, "number": math.nan, "circle": circle})
    user.info("fine", extra={"order": 7, "task": "mine"})
    # Not through the loggers: pytest keeps their records, and its processes cannot send half a character to each other.
    odd = JsonLines().format(
        user.makeRecord("user", 20, "", 1, "control \x1b[31m \x7f \n second line \ud800 ü", (), None)
    )
    try:
        raise ValueError("broken")
    except ValueError:
        user.exception("it broke", stack_info=True)
    for line in [odd, *lines._stream.getvalue().splitlines()]:
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert line.isascii()
        assert line.isprintable()
    assert lines.with_message("extra")["extra"]["order"] == "7"
    assert lines.with_message("fine")["extra"] == {"order": 7, "task": "mine"}
    assert "ValueError: broken" in lines.with_message("it broke")["trace"]
    assert "stack" in lines.with_message("it broke")


async def test_a_format_of_your_own(lab: Lab):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(LogContext())
    handler.setFormatter(logging.Formatter("%(task)s %(step)s %(message)s"))
    user.addHandler(handler)

    async def pay() -> None:
        user.warning("hm")

    @lab.app.task
    async def work(ctx):
        await ctx.step(pay)

    try:
        await lab.start()
        await lab.ended(await lab.submit(work))
        user.warning("outside")
    finally:
        user.removeHandler(handler)
    assert stream.getvalue().splitlines() == ["work pay hm", "  outside"]


def test_a_stamped_record_keeps_its_fields():
    record = logging.makeLogRecord({"msg": "m", "onward": {"task_id": "t1"}, "task_id": "t1"})
    line = json.loads(JsonLines().format(record))
    assert (line["task_id"], "extra" in line) == ("t1", False)
    assert set(FIELDS) >= {"task_id", "step", "trace_id"}


def test_a_secret_is_in_no_line(lines: Lines):
    learn("token", "hunter2-hunter2")
    try:
        raise ValueError("hunter2-hunter2 was refused")
    except ValueError:
        user.exception("with %s", "hunter2-hunter2", extra={"token": "hunter2-hunter2"})
    assert "hunter2" not in lines._stream.getvalue()
    assert "ValueError: [secret token] was refused" in lines.with_message("with [secret token]")["trace"]


# ── as a setting ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_setting():
    assert load({}, {}).log == "text"
    assert load({}, {"ONWARD_LOG": "json"}).log == "json"
    with pytest.raises(BadSetting, match="text or json"):
        load({"log": "xml"}, {})


@pytest.mark.slow
@pytest.mark.parametrize("way", ["setting", "option"])
def test_a_worker_process_logs_its_tasks_as_json(way: str, tmp_path):
    (tmp_path / "shop.py").write_text(
        "import logging\nfrom onward import Onward\napp = Onward()\n"
        "def pay(): logging.getLogger('shop').info('paying')\n"
        "@app.task\ndef order(ctx):\n    ctx.step(pay)\n"
    )
    db = f"sqlite:///{tmp_path / 'onward.db'}"
    env = {"ONWARD_DB": db, "PYTHONPATH": f"{ROOT / 'src'}"} | ({"ONWARD_LOG": "json"} if way == "setting" else {})
    option = ["--json"] if way == "option" else []
    with Child.module("onward", "worker", "shop:app", *option, env=env, cwd=tmp_path) as worker:
        worker.wait_for("ready", 60)
        with Child.module("onward", "submit", "order", env=env, cwd=tmp_path) as submit:
            assert submit.wait() == 0
        worker.wait_for(") completed", 60)
        worker.terminate()
        assert worker.wait() == 0
    documents = [json.loads(line) for line in worker.lines]
    assert [document["event"] for document in documents if "event" in document] == ["ready", "stopping", "stopped"]
    (paying,) = [document for document in documents if document["message"] == "paying"]
    assert (paying["task"], paying["step"], paying["logger"]) == ("order", "pay", "shop")
    messages = [
        document["message"].partition(") ")[2] for document in documents if document.get("logger") == "onward.task"
    ]
    assert messages == ["started", "completed"]
    assert worker.errors == []
