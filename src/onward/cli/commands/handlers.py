"""handlers: list the handlers, with their input and their workers."""

from __future__ import annotations

import dataclasses
import difflib
from argparse import Namespace
from collections.abc import Sequence

from rich.text import Text

from onward.cli.args import connect
from onward.cli.output.screen import Screen, facts, indented
from onward.cli.output.table import Column, fixed, number
from onward.cli.output.text import count, readable, safe, safe_lines
from onward.core.views import HandlerView
from onward.errors import UnknownTask

COLUMNS = (
    Column("NAME", 12),
    fixed("KIND", drop=1),
    Column("QUEUE", drop=2),
    number("WORKERS"),
    Column("WHAT IT IS FOR", 20),
)


async def handlers(args: Namespace) -> int:
    """`onward handlers`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        views = await connect.everything(backend.handlers)
    if args.name is not None:
        return _show(screen, _named(views, args.name))
    rows = [
        (
            Text(safe(handler.name)),
            Text(handler.kind),
            Text(safe(handler.queue), "dim"),
            Text(f"{handler.workers:,}", "" if handler.workers else "red"),
            Text(safe(handler.doc.partition("\n")[0]), "dim"),
        )
        for handler in views
    ]
    document = {"handlers": [dataclasses.asdict(handler) for handler in views]}
    empty = "no worker has registered a handler yet; start one with `onward worker MODULE:APP`"
    return screen.table(document, COLUMNS, rows, empty)


def _named(views: Sequence[HandlerView], name: str) -> HandlerView:
    for handler in views:
        if handler.name == name:
            return handler
    names = [handler.name for handler in views]
    raise UnknownTask(name, difflib.get_close_matches(name, names, n=5, cutoff=0) or names)


def _show(screen: Screen, handler: HandlerView) -> int:
    if screen.json:
        screen.document(dataclasses.asdict(handler))
        return 0
    screen.say((safe(handler.name), "bold"), "  ", (handler.kind, "dim"))
    if handler.doc:
        screen.say(safe_lines(handler.doc.strip()))
    workers = f"{count(handler.workers, 'worker')} {'has' if handler.workers == 1 else 'have'} it"
    pairs = [("queue", handler.queue), ("workers", workers), ("input", readable(handler.schema))]
    screen.block(indented(facts(pairs)))
    return 0
