"""handlers: what can be submitted, what it takes, and who does it."""

from __future__ import annotations

import dataclasses
import difflib
from argparse import Namespace
from collections.abc import Sequence

from rich.text import Text

from onward.cli.args import connect as door
from onward.cli.output.screen import Screen, facts, indented
from onward.cli.output.table import Column, fixed, number, print_table
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
    async with door.opened(args) as app:
        found = await app.service.handlers.list()
    if args.name is not None:
        return _show(screen, _named(found, args.name))
    if screen.json:
        screen.document({"handlers": [dataclasses.asdict(one) for one in found]})
    elif found:
        rows = [
            (
                Text(safe(one.name)),
                Text(one.kind),
                Text(safe(one.queue), "dim"),
                Text(f"{one.workers:,}", "" if one.workers else "red"),
                Text(safe(one.doc.partition("\n")[0]), "dim"),
            )
            for one in found
        ]
        print_table(screen.out, COLUMNS, rows)
    else:
        screen.aside("no worker has offered anything yet; start one with `onward worker MODULE:APP`")
    return 0


def _named(found: Sequence[HandlerView], name: str) -> HandlerView:
    for one in found:
        if one.name == name:
            return one
    names = [one.name for one in found]
    raise UnknownTask(name, difflib.get_close_matches(name, names, n=5, cutoff=0) or names)


def _show(screen: Screen, one: HandlerView) -> int:
    if screen.json:
        screen.document(dataclasses.asdict(one))
        return 0
    screen.say((safe(one.name), "bold"), "  ", (one.kind, "dim"))
    if one.doc:
        screen.say(safe_lines(one.doc.strip()))
    done = f"{count(one.workers, 'worker')} {'does' if one.workers == 1 else 'do'} it"
    screen.block(indented(facts([("queue", one.queue), ("workers", done), ("input", readable(one.schema))])))
    return 0
