"""Logs: lines that say which task, step, shift and worker they come from, as JSON or in a format of your own.

What is known travels with the code in context variables, through tasks, branches and the threads of plain functions. So it is on
every line that is logged inside a handler or a step, by whichever logger.

    handler.setFormatter(onward.JsonLines())     one JSON object a line
    handler.addFilter(onward.LogContext())        %(task_id)s, %(task)s, %(step)s … for any other formatter
"""

from __future__ import annotations

import datetime
import json
import logging
from typing import Any

from onward import telemetry
from onward.core import wire
from onward.engine.shift.scope import SCOPE
from onward.telemetry import DOING, WORKING

FIELDS = ("task_id", "task", "step", "shift", "attempt", "worker", "trace_id", "span_id")
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "onward"}


def where() -> dict[str, Any]:
    """What is known of the place that we are in; empty outside of a task."""
    claimed, worker, scope = DOING.get(None), WORKING.get(None), SCOPE.get(None)
    known: dict[str, Any] = {}
    if claimed is not None:
        known |= {"task_id": claimed.id, "task": claimed.task, "shift": claimed.shift, "attempt": claimed.attempt}
        if scope is not None and scope.key is not None:
            known["step"] = scope.key
    if worker is not None:
        known["worker"] = worker.id
    trace = telemetry.carried() or (_kept(claimed.options) if claimed is not None else None)
    if trace is not None:
        _, known["trace_id"], span, _ = trace["traceparent"].split("-", 3)
        if claimed is None or telemetry.tracer() is not None:
            known["span_id"] = span
    return known


def _kept(options: bytes) -> telemetry.Trace | None:
    """The trace that came with a task, where nobody traces here."""
    if b'"trace"' not in options:
        return None
    trace = wire.decode(options).get("trace")
    return telemetry.incoming(trace) if isinstance(trace, dict) else None


class LogContext(logging.Filter):
    """Puts what is known on every record that passes; what is not known is empty. It belongs on a handler, and before a
    QueueHandler, whose other end is in another place."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.onward = known = where()
        for field in FIELDS:
            if not hasattr(record, field):  # what was given as `extra` stays
                setattr(record, field, known.get(field, ""))
        return True


class JsonLines(logging.Formatter):
    """One JSON object a line: when, how grave, who, what, where; and what was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        said = self.told(record)
        try:
            line = json.dumps(said, default=str, allow_nan=False)
        except (ValueError, TypeError, RecursionError):  # only what somebody else gave can be no JSON
            line = json.dumps(said | {"extra": {str(name): repr(value) for name, value in said["extra"].items()}})
        return line.replace("\x7f", "\\u007f")

    def told(self, record: logging.LogRecord) -> dict[str, Any]:
        """The line as a value."""
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        said: dict[str, Any] = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        stamped: dict[str, Any] | None = getattr(record, "onward", None)
        said |= where() if stamped is None else stamped
        ours = _OWN if stamped is None else _OWN | set(FIELDS)
        if extra := {name: value for name, value in vars(record).items() if name not in ours}:
            said["extra"] = extra
        if record.exc_info:
            said["trace"] = self.formatException(record.exc_info)
        elif record.exc_text:  # a traceback in which a secret was masked
            said["trace"] = record.exc_text
        if record.stack_info:
            said["stack"] = self.formatStack(record.stack_info)
        return said
