"""The filter options of `list`, and of the commands with --all, converted to arguments of a verb."""

from __future__ import annotations

import contextlib
import datetime
import time
from argparse import Namespace
from typing import Any

from onward.cli.args import connect
from onward.cli.args.connect import Backend
from onward.core.durations import seconds
from onward.errors import OnwardError, UsageError


async def task_filters(args: Namespace, backend: Backend) -> dict[str, Any]:
    """The filters that were given, as keyword arguments of `AuthorizedService.list`."""
    labels: dict[str, list[str]] = {}
    for name, value in args.label:
        labels.setdefault(name, []).append(value)
    filters = {
        "state": _one_or_list(args.state),
        "reason": _one_or_list(args.reason),
        "task": _one_or_list(args.name),
        "queue": _one_or_list(args.queue),
        "labels": {name: _one_or_list(values) for name, values in labels.items()},
        "parent": None if args.parent is None else await connect.resolve_task_id(backend, args.parent),
        "tenant": args.tenant,
        "created_after": parse_time("--since", args.since),
        "created_before": parse_time("--until", args.until),
        "text": args.text,
    }
    return {name: value for name, value in filters.items() if value not in (None, [], {})}


def _one_or_list(values: list[str]) -> str | list[str] | None:
    return values[0] if len(values) == 1 else values or None


def parse_time(option: str, given: str | None) -> float | None:
    """The timestamp of a time such as 2026-11-15T14:00, or of a duration before now such as 2h."""
    if given is None:
        return None
    with contextlib.suppress(OnwardError):
        return time.time() - seconds(given, option)
    try:
        return datetime.datetime.fromisoformat(given).astimezone().timestamp()
    except ValueError:
        raise UsageError(
            f"{option} is a time such as 2026-11-15T14:00, or how long ago such as 2h, not {given!r}"
        ) from None
