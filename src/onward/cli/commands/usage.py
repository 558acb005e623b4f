"""usage: calls, tokens and cost of models, by agent, model, key or day."""

from __future__ import annotations

import dataclasses
from argparse import Namespace

from rich.text import Text

from onward.cli.args import connect
from onward.cli.args.filters import parse_time
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, number, print_table
from onward.cli.output.text import safe
from onward.core.views import UsageRow
from onward.service.usage import MAX_REPORT_TASKS

NUMBERS = (
    number("TASKS", drop=3),
    number("CALLS", drop=2),
    number("TOKENS IN"),
    number("TOKENS OUT"),
    number("COST"),
    number("UNKNOWN", drop=1),
)


async def usage(args: Namespace) -> int:
    """`onward usage`."""
    screen = Screen(args)
    since, until = parse_time("--since", args.since), parse_time("--until", args.until)
    async with connect.open_backend(args) as backend:
        report = await backend.usage(args.by, since=since, until=until)
    if screen.json:
        screen.document(dataclasses.asdict(report))
        return 0
    if report.rows:
        _print(screen, args.by, report.rows)
    else:
        screen.aside("no model was called; app.agent(…) creates agents")
    if not report.complete:
        screen.aside(f"only the newest {MAX_REPORT_TASKS:,} tasks; use --since, or --until for older ones")
    return 0


def _print(screen: Screen, by: str, rows: list[UsageRow]) -> None:
    total = UsageRow("all")
    for row in rows:
        for name in ("tasks", "calls", "tokens_in", "tokens_out", "usd", "unknown"):
            setattr(total, name, getattr(total, name) + getattr(row, name))
    shown = [_cells(row, "") for row in rows]
    print_table(
        screen.out, (Column(by.upper(), 10), *NUMBERS), [*shown, *([_cells(total, "bold")] if rows[1:] else [])]
    )
    if total.unknown:
        screen.aside(("UNKNOWN: tasks or calls whose price or tokens are unknown; the sums do not include them", "dim"))


def _cells(row: UsageRow, style: str) -> tuple[Text, ...]:
    numbers = [f"{n:,}" for n in (row.tasks, row.calls, row.tokens_in, row.tokens_out)]
    unknown = f"{row.unknown:,}" if row.unknown else ""
    return tuple(Text(text, style) for text in (safe(row.group) or "(none)", *numbers, _cost(row), unknown))


def _cost(row: UsageRow) -> str:
    """The cost, marked as a minimum or unknown if the price of a call is unknown."""
    if not row.unknown:
        return f"${row.usd:,.4f}"
    return f"${row.usd:,.4f} or more" if row.usd else "unknown"
