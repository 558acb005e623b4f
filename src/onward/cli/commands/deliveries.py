"""deliveries: list, redeliver."""

from __future__ import annotations

import time
from argparse import Namespace

from rich.text import Text

from onward.app.application import Onward
from onward.cli.args import connect as door
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed, number, print_table
from onward.cli.output.text import age, safe, span
from onward.core.views import Delivery
from onward.errors import NotFound, UsageError
from onward.service.serialize import delivery_json
from onward.service.subscriptions import Deliveries
from onward.store.port.outbox import DELIVERED, FAILED, PENDING

COLUMNS = (
    fixed("ID"),
    Column("TYPE", drop=2),
    fixed("STATE"),
    number("TRIES", drop=3),
    Column("TO"),
    fixed("WHEN", drop=1),
    Column("SAID", drop=1),
)
LOOKED_AT = 1000
"""Deliveries among which a shortened id is looked for."""

_STYLES = {DELIVERED: "green", FAILED: "red", PENDING: ""}


async def list_deliveries(args: Namespace) -> int:
    """`onward deliveries`."""
    if args.failed and args.pending:
        raise UsageError("--failed and --pending do not go together; leave one out")
    screen = Screen(args)
    async with door.opened(args) as app:
        task = None if args.task is None else await door.whole_id(app.service, args.task)
        state = FAILED if args.failed else PENDING if args.pending else None
        found, cursor = await app.deliveries(state=state, task=task, limit=args.limit, cursor=args.cursor)
    if screen.json:
        screen.document({"deliveries": [delivery_json(one) for one in found], "next": cursor})
        return 0
    if found:
        _print(screen, found)
    else:
        screen.aside("no deliveries; `submit --webhook URL` makes one, and so does @app.on(…)")
    if cursor is not None:
        screen.aside(f"more with --cursor {cursor}")
    return 0


def _print(screen: Screen, found: Deliveries) -> None:
    now = time.time()
    rows = [
        (
            Text(safe(one.id)),
            Text(safe(one.type)),
            Text(one.state, _STYLES[one.state]),
            Text(str(one.attempts)),
            Text(safe(_where(one))),
            Text(safe(_when(one, now)), "dim"),
            Text(safe(one.said or "")),
        )
        for one in found
    ]
    print_table(screen.out, COLUMNS, rows)


def _where(one: Delivery) -> str:
    """The receiver, without what may be a secret in its address."""
    return (one.sink or "(removed)").partition("?")[0]


def _when(one: Delivery, now: float) -> str:
    if one.sending:
        return "now"
    if one.due_at is not None:
        return f"in {span(one.due_at - now)}" if one.due_at > now else "due"
    return f"{age(now - (one.done_at or one.at))} ago"


async def _whole(app: Onward, given: str) -> str:
    """The id that is meant: a whole one, or the first or last characters of one of the newest."""
    found, _ = await app.deliveries(limit=LOOKED_AT)
    ids = [(one.id, f"{one.type}, {one.state}") for one in found]
    try:
        return door.one_of(given, "delivery", ids, NotFound(given))
    except NotFound:
        return given  # perhaps an older one; `redeliver` says what is wrong with it


async def redeliver(args: Namespace) -> int:
    """`onward deliveries redeliver`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        one = await app.redeliver(await _whole(app, args.delivery))
    if screen.json:
        screen.document(delivery_json(one))
    else:
        screen.say(f"delivery {safe(one.id)} is due; a worker, or `onward serve`, sends it")
    return 0
