"""Which tasks a command is about: the options of `list`, and of all that act on what matches, as the service takes them."""

from __future__ import annotations

import contextlib
import datetime
import time
from argparse import Namespace
from typing import Any

from onward.cli.args import connect as door
from onward.core.durations import seconds
from onward.errors import OnwardError, UsageError
from onward.service.service import Service


async def which(args: Namespace, service: Service) -> dict[str, Any]:
    """What was asked for, without what was not."""
    labels: dict[str, list[str]] = {}
    for name, value in args.label:
        labels.setdefault(name, []).append(value)
    wanted = {
        "state": _several(args.state),
        "reason": _several(args.reason),
        "task": _several(args.name),
        "queue": _several(args.queue),
        "labels": {name: _several(values) for name, values in labels.items()},
        "parent": None if args.parent is None else await door.whole_id(service, args.parent),
        "whose": args.tenant,
        "created_after": moment("--since", args.since),
        "created_before": moment("--until", args.until),
        "text": args.text,
    }
    return {name: value for name, value in wanted.items() if value not in (None, [], {})}


def _several(values: list[str]) -> str | list[str] | None:
    return values[0] if len(values) == 1 else values or None


def moment(option: str, given: str | None) -> float | None:
    """A time, or how long ago."""
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
