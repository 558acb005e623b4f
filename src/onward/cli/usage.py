"""usage: what models took, by agent, model or day."""

from __future__ import annotations

import dataclasses
import datetime
from argparse import Namespace
from typing import Any

from rich.text import Text

from onward.app import Onward
from onward.cli import door
from onward.cli.screen import Screen
from onward.cli.table import Column, number, print_table
from onward.cli.text import safe
from onward.cli.which import moment
from onward.core.task import Task

PAGE = 1000
MOST = 10_000
"""Tasks that are looked at, the newest."""

TURNS = 100_000
COLUMNS = ("TASKS", "CALLS", "TOKENS IN", "TOKENS OUT", "COST", "UNKNOWN")


@dataclasses.dataclass(slots=True)
class Row:
    """What one agent, model or day took. `unknown` is how many calls, or tasks, did not tell all of it."""

    group: str
    tasks: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    unknown: int = 0

    def add(self, calls: int | None, tokens_in: int | None, tokens_out: int | None, usd: float | None) -> None:
        """One more; what is None is unknown, and counted as that."""
        self.calls += calls or 0
        self.tokens_in += tokens_in or 0
        self.tokens_out += tokens_out or 0
        self.usd += usd or 0.0
        self.unknown += None in {calls, tokens_in, tokens_out, usd}


async def usage(args: Namespace) -> int:
    """`onward usage`."""
    screen = Screen(args)
    since, until = moment("--since", args.since), moment("--until", args.until)
    async with door.opened(args) as app:
        tasks, all_of_them = await _tasks(app, since, until)
        found = await _by_model(app, tasks) if args.by == "model" else await _by_task(app, tasks, args.by)
    rows = sorted(found.values(), key=lambda row: row.group if args.by == "day" else -row.usd)
    if screen.json:
        screen.document({"by": args.by, "rows": [dataclasses.asdict(row) for row in rows], "complete": all_of_them})
        return 0
    if rows:
        _print(screen, args.by, rows)
    else:
        screen.aside("no model was asked; agents are made with app.agent(…)")
    if not all_of_them:
        screen.aside(f"only the newest {MOST:,} tasks; say --since, or --until for those before")
    return 0


async def _tasks(app: Onward, since: float | None, until: float | None) -> tuple[list[Task], bool]:
    """Tasks of agents, the newest, and whether these are all."""
    agents = [one.name for one in await app.service.handlers.list() if one.kind == "agent"]
    found: list[Task] = []
    cursor: str | None = None
    while agents and len(found) < MOST:
        page, cursor = await app.service.list(
            task=agents, created_after=since, created_before=until, limit=PAGE, cursor=cursor
        )
        found += page
        if cursor is None:
            break
    return found, cursor is None


async def _by_task(app: Onward, tasks: list[Task], by: str) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for task in tasks:
        taken = task.usage or (await app.service.look(task.task_id)).usage
        if taken is None:
            continue
        day = datetime.datetime.fromtimestamp(task.created_at, datetime.UTC).date().isoformat()
        row = found.setdefault(group := day if by == "day" else task.task, Row(group))
        row.tasks += 1
        row.add(taken.calls, taken.input_tokens, taken.output_tokens, taken.cost_usd)
    return found


async def _by_model(app: Onward, tasks: list[Task]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for task in tasks:
        turns = await app.service.journals.turns(task.task_id, limit=TURNS)
        for turn in turns:
            row = found.setdefault(turn.model, Row(turn.model))
            row.add(1, turn.input_tokens, turn.output_tokens, turn.cost_usd)
        for model in {turn.model for turn in turns}:
            found[model].tasks += 1
    return found


def _print(screen: Screen, by: str, rows: list[Row]) -> None:
    columns = [
        Column(by.upper(), 10),
        *[number(name, drop=drop) for name, drop in zip(COLUMNS, (3, 2, 0, 0, 0, 1), strict=True)],
    ]
    total = Row("all")
    shown: list[Any] = []
    for row in rows:
        total.tasks += row.tasks
        total.add(row.calls, row.tokens_in, row.tokens_out, row.usd)
        total.unknown += row.unknown
        shown.append(_cells(row, ""))
    print_table(screen.out, columns, [*shown, *([_cells(total, "bold")] if len(rows) > 1 else [])])
    if total.unknown:
        screen.aside(("UNKNOWN: so many did not tell their price or their tokens, and are not in the sums", "dim"))


def _cells(row: Row, style: str) -> tuple[Text, ...]:
    numbers = [f"{many:,}" for many in (row.tasks, row.calls, row.tokens_in, row.tokens_out)]
    unknown = f"{row.unknown:,}" if row.unknown else ""
    return tuple(Text(text, style) for text in (safe(row.group), *numbers, _cost(row), unknown))


def _cost(row: Row) -> str:
    """What is unknown is never nothing."""
    if not row.unknown:
        return f"${row.usd:,.4f}"
    return f"${row.usd:,.4f} or more" if row.usd else "unknown"
