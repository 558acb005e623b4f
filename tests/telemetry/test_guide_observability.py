"""docs/guides/observability.md is true: its code runs, its metrics exist, its commands are commands."""

from __future__ import annotations

import logging
import re
import shlex

from opentelemetry import trace

from onward.cli.args.parser import parse
from onward.server.http.metrics import Metrics
from onward.store.port.overview import QueueSnapshot, Unfinished
from onward.telemetry import counters
from onward.testing import drain, memory_app
from tests.docs.test_guides import GUIDES, code_of
from tests.telemetry.conftest import Spans

TEXT = (GUIDES / "observability.md").read_text(encoding="utf-8")


async def test_the_traced_app(spans: Spans, monkeypatch):
    monkeypatch.setattr(trace, "set_tracer_provider", lambda _provider: None)  # the test has set up its own
    app = memory_app(code_of("observability.md", "traced.py")["app"])
    async with app:
        task = await app.submit("checkout", 7)
        await drain(app)
        assert (await task.get()).result == "order 7 is paid"
    assert [span.name for span in spans.all] == ["submit checkout", "invoke_workflow checkout", "onward.step charge"]


def test_the_lines(capsys):
    names = code_of("observability.md", "logged.py")
    record = logging.makeLogRecord({"msg": "hello", "levelname": "INFO", "name": "shop"})
    for handler in (names["lines"], names["plain"]):
        handler.handle(record)
    err = capsys.readouterr().err
    assert '"message": "hello"' in err
    assert "INFO / hello" in err


async def test_every_metric_is_in_the_guide_and_every_metric_of_the_guide_is_there(counting):
    async def look() -> QueueSnapshot:
        return QueueSnapshot([Unfinished("q", "queued", 1, 1.0)], {}, 1, 1, 0, (1, 2.0))

    counters.request("/x", "GET", 200, 0.1)
    families = await Metrics(look).families()
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    ours = {name for name in names if name.startswith("onward_")}
    assert set(re.findall(r"`(onward_\w+)", TEXT)) == ours


def test_the_commands():
    for command in re.findall(r"^\$ (onward .*)$", TEXT, re.MULTILINE):
        assert parse(shlex.split(command)[1:]).command == "worker"
