"""schedules: list, pause, unpause, remove and trigger schedules."""

from __future__ import annotations

import time
from argparse import Namespace

from rich.text import Text

from onward.cli.args import connect
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed
from onward.cli.output.text import age, local, safe, span
from onward.core.views import Schedule
from onward.service.serialize import schedule_json, task_json

COLUMNS = (Column("NAME"), Column("TASK", drop=2), Column("RHYTHM"), fixed("LAST", drop=1), Column("NEXT", 25))


async def list_schedules(args: Namespace) -> int:
    """`onward schedules`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        schedules = await connect.everything(backend.schedules)
    now = time.time()
    rows = [
        (
            Text(safe(schedule.name)),
            Text(safe(schedule.task)),
            Text(safe(rhythm(schedule))),
            Text("" if schedule.last_at is None else f"{age(now - schedule.last_at)} ago", "dim"),
            Text(_next(schedule, now)),
        )
        for schedule in schedules
    ]
    document = {"schedules": [schedule_json(schedule) for schedule in schedules]}
    empty = "no schedules; declare one with app.schedule(…) and start a worker: `onward worker MODULE:APP`"
    return screen.table(document, COLUMNS, rows, empty)


def rhythm(schedule: Schedule) -> str:
    """The interval of the schedule, or its cron expression with the timezone."""
    if schedule.every is not None:
        return f"every {_interval(schedule.every)}"
    return f"{schedule.cron} {schedule.timezone}"


def _interval(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _next(schedule: Schedule, now: float) -> str:
    if schedule.paused:
        return "paused"
    if schedule.next_at is None:
        return "never"
    left = schedule.next_at - now
    return f"{local(schedule.next_at)} ({f'in {span(left)}' if left > 0 else 'waits for a worker'})"


async def pause(args: Namespace) -> int:
    """`onward schedules pause`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        schedule = await backend.pause_schedule(args.name)
    return _print_change(screen, schedule, f"is paused; `onward schedules unpause {schedule.name}` lets it go on")


async def unpause(args: Namespace) -> int:
    """`onward schedules unpause`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        schedule = await backend.unpause_schedule(args.name)
    return _print_change(screen, schedule, f"ticks next at {_next(schedule, time.time())}")


def _print_change(screen: Screen, schedule: Schedule, change: str) -> int:
    if screen.json:
        screen.document(schedule_json(schedule))
    else:
        screen.say(
            f"schedule {safe(schedule.name)} ", ("(", "dim"), (safe(schedule.task), "dim"), (") ", "dim"), safe(change)
        )
    return 0


async def remove(args: Namespace) -> int:
    """`onward schedules remove`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        await backend.remove_schedule(args.name)
    if screen.json:
        screen.document({"name": args.name, "removed": True})
    else:
        screen.say(f"schedule {safe(args.name)} is removed; a worker whose code declares it creates it again")
    return 0


async def trigger(args: Namespace) -> int:
    """`onward schedules trigger`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        task = await backend.get(await backend.trigger(args.name))
    if screen.json:
        screen.document(task_json(task))
    else:
        print(task.task_id)
    return 0
