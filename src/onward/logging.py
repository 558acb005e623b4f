"""Logs: each line says which task, step, shift and worker it comes from, as JSON or in a format of your own.

Context variables carry these facts along with the code, through tasks, branches and the threads of plain functions. So they are on
every line that is logged inside a handler or a step, by any logger.

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
from onward.telemetry import CURRENT_TASK, CURRENT_WORKER

FIELDS = ("task_id", "task", "step", "shift", "attempt", "worker", "trace_id", "span_id")
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "onward"}


def where() -> dict[str, Any]:
    """The task, step, shift and worker that the running code belongs to; empty outside of a task."""
    claimed, worker, scope = CURRENT_TASK.get(None), CURRENT_WORKER.get(None), SCOPE.get(None)
    fields: dict[str, Any] = {}
    if claimed is not None:
        fields |= {"task_id": claimed.id, "task": claimed.task, "shift": claimed.shift, "attempt": claimed.attempt}
        if scope is not None and scope.key is not None:
            fields["step"] = scope.key
    if worker is not None:
        fields["worker"] = worker.id
    trace = telemetry.current_trace() or (_stored_trace(claimed.options) if claimed is not None else None)
    if trace is not None:
        _, fields["trace_id"], span, _ = trace["traceparent"].split("-", 3)
        if claimed is None or telemetry.tracer() is not None:
            fields["span_id"] = span
    return fields


def _stored_trace(options: bytes) -> telemetry.Trace | None:
    """The trace of the task's submitter, where this process does not trace."""
    if b'"trace"' not in options:
        return None
    trace = wire.decode(options).get("trace")
    return telemetry.incoming(trace) if isinstance(trace, dict) else None


class LogContext(logging.Filter):
    """Puts what is known on every record that passes; what is not known is empty. It belongs on a handler, and before a
    QueueHandler, whose other end is in another place."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.onward = fields = where()
        for field in FIELDS:
            if not hasattr(record, field):  # a field that was given as `extra` stays
                setattr(record, field, fields.get(field, ""))
        return True


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the task's fields; and what was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.to_dict(record)
        try:
            line = json.dumps(fields, default=str, allow_nan=False)
        except (ValueError, TypeError, RecursionError):  # only values of `extra` can be no JSON
            line = json.dumps(fields | {"extra": {str(name): repr(value) for name, value in fields["extra"].items()}})
        return line.replace("\x7f", "\\u007f")

    def to_dict(self, record: logging.LogRecord) -> dict[str, Any]:
        """The fields of a line."""
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        fields: dict[str, Any] = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        stamped: dict[str, Any] | None = getattr(record, "onward", None)
        fields |= where() if stamped is None else stamped
        known = _STANDARD_FIELDS if stamped is None else _STANDARD_FIELDS | set(FIELDS)
        if extra := {name: value for name, value in vars(record).items() if name not in known}:
            fields["extra"] = extra
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        elif record.exc_text:  # a traceback in which a secret was masked
            fields["trace"] = record.exc_text
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return fields
