"""deliveries: list deliveries of events, and send one again."""

from __future__ import annotations

import time
from argparse import Namespace

from rich.text import Text

from onward.cli.args import connect
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed, number
from onward.cli.output.text import age, safe, span
from onward.core.views import Delivery
from onward.errors import NotFound, UsageError
from onward.service.serialize import delivery_json
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
MAX_SEARCHED = 1000
"""Newest deliveries among which a shortened id is searched."""

_STYLES = {DELIVERED: "green", FAILED: "red", PENDING: ""}


async def list_deliveries(args: Namespace) -> int:
    """`onward deliveries`."""
    if args.failed and args.pending:
        raise UsageError("--failed and --pending do not go together; leave one out")
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        task = None if args.task is None else await connect.resolve_task_id(backend, args.task)
        state = FAILED if args.failed else PENDING if args.pending else None
        page, cursor = await backend.deliveries(state=state, task=task, limit=args.limit, cursor=args.cursor)
    now = time.time()
    rows = [
        (
            Text(safe(delivery.id)),
            Text(safe(delivery.type)),
            Text(delivery.state, _STYLES[delivery.state]),
            Text(str(delivery.attempts)),
            Text(safe(_receiver(delivery))),
            Text(safe(_when(delivery, now)), "dim"),
            Text(safe(delivery.said or "")),
        )
        for delivery in page
    ]
    document = {"deliveries": [delivery_json(delivery) for delivery in page], "next": cursor}
    screen.table(document, COLUMNS, rows, "no deliveries; `submit --webhook URL` and @app.on(…) create them")
    if cursor is not None:
        screen.aside(f"more with --cursor {cursor}")
    return 0


def _receiver(delivery: Delivery) -> str:
    """The address of the receiver without its query, which may hold a secret."""
    return (delivery.sink or "(removed)").partition("?")[0]


def _when(delivery: Delivery, now: float) -> str:
    if delivery.sending:
        return "now"
    if delivery.due_at is not None:
        return f"in {span(delivery.due_at - now)}" if delivery.due_at > now else "due"
    return f"{age(now - (delivery.done_at or delivery.at))} ago"


async def _resolve_id(backend: connect.Backend, given: str) -> str:
    """The whole id for an id, or for the first or last characters of one of the newest."""
    newest, _ = await backend.deliveries(limit=MAX_SEARCHED)
    ids = [(delivery.id, f"{delivery.type}, {delivery.state}") for delivery in newest]
    try:
        return connect.match_id(given, "delivery", ids, NotFound(given))
    except NotFound:
        return given  # it may be older; `redeliver` raises the error if it does not exist


async def redeliver(args: Namespace) -> int:
    """`onward deliveries redeliver`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        delivery = await backend.redeliver(await _resolve_id(backend, args.delivery))
    if screen.json:
        screen.document(delivery_json(delivery))
    else:
        screen.say(f"delivery {safe(delivery.id)} is due; a worker, or `onward serve`, sends it")
    return 0
