"""budget: show what a task has spent of its budget, and set new limits."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from rich.text import Text

from onward.cli.args import connect
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed, number, print_table
from onward.cli.output.text import count, span
from onward.core.budget import KINDS
from onward.core.views import Spent

NAMES = {"steps": "steps", "llm_tokens": "tokens", "cost_usd": "usd", "wall_time": "time"}
BAR_WIDTH = 20
COLUMNS = (fixed("OF"), number("SPENT"), number("RESERVED", drop=1), number("LIMIT"), Column(""))


async def budget(args: Namespace) -> int:
    """`onward budget`."""
    screen = Screen(args)
    limits = {
        "max_steps": args.steps,
        "max_llm_tokens": args.tokens,
        "max_cost_usd": args.usd,
        "max_wall_time": args.time,
    }
    async with connect.open_backend(args) as backend:
        task_id = await connect.resolve_task_id(backend, args.id)
        if any(value is not None for value in limits.values()):
            before = await backend.budget(task_id)
            spent = await backend.raise_budget(task_id, **limits)
            if not screen.json:
                screen.say(f"{_change(before, spent)}; {count(len(before.waiting), 'task')} waited for it")
        else:
            spent = await backend.budget(task_id)
    if screen.json:
        screen.document(
            {"task_id": spent.task_id, "budget": spent.meters, "waiting": list(spent.waiting), "needs": spent.needs}
        )
    else:
        _show(screen, task_id, spent)
    return 0


def _change(before: Spent, after: Spent) -> str:
    """Whether the limits were raised, lowered, or the same already: the command accepts lower limits too."""
    pairs = [(before.meters[kind]["limit"], after.meters[kind]["limit"]) for kind in NAMES]
    if all(was == now for was, now in pairs):
        return "it was so already"
    return (
        "lowered"
        if all(now is not None and (was is None or now <= was) for was, now in pairs if was != now)
        else "raised"
    )


def _show(screen: Screen, task_id: str, spent: Spent) -> None:
    if spent.task_id != task_id:
        screen.say(f"task {task_id} spends from the budget of task {spent.task_id}")
    rows = [
        (Text(NAMES[kind]), *_meter(kind, meter), _bar(meter))
        for kind, meter in spent.meters.items()
        if meter["limit"] is not None or meter["spent"]
    ]
    print_table(screen.out, COLUMNS, rows)
    if over := {NAMES[kind]: more for kind, more in spent.ledger.exceeded.items()}:
        excess = ", ".join(f"{_number(more)} {name}" for name, more in over.items())
        screen.say((f"the provider took {excess} more than it was allowed", "yellow"))
    if spent.waiting:
        verb = "waits" if len(spent.waiting) == 1 else "wait"
        screen.aside((f"{count(len(spent.waiting), 'task')} {verb} for more{_next_call(spent)}", "dim"))


def _next_call(spent: Spent) -> str:
    """The need of the smallest waiting call, and what is left, for each limit that stops it."""
    shortages = []
    for kind in KINDS:
        needs = [need[kind] for need in spent.needs.values() if need[kind] is not None]
        limit, used = spent.ledger.budget.of(kind), spent.ledger.used(kind)
        if limit is not None and needs and used + min(needs) > limit:
            left = max(limit - used, 0)
            shortages.append(f"the next call needs {_number(min(needs))} {NAMES[kind]}, and {_number(left)} are left")
    return f": {'; '.join(shortages)}" if shortages else ""


def _meter(kind: str, meter: dict[str, Any]) -> tuple[Text, Text, Text]:
    show = span if kind == "wall_time" else _number
    spent = "unknown" if meter["spent"] is None else show(meter["spent"])
    limit = "" if meter["limit"] is None else show(meter["limit"])
    return Text(spent), Text(show(meter["reserved"]) if meter["reserved"] else ""), Text(limit)


def _bar(meter: dict[str, Any]) -> Text:
    if not meter["limit"]:
        return Text("")
    full = min(1.0, ((meter["spent"] or 0) + meter["reserved"]) / meter["limit"])
    filled = round(full * BAR_WIDTH)
    return Text(
        "█" * filled + "░" * (BAR_WIDTH - filled) + f" {full:.0%}",
        "red" if full >= 1 else "yellow" if full >= 0.8 else "green",
    )


def _number(value: float) -> str:
    return f"{value:,.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"
