"""list, show, cancel, resume, prioritize."""

from __future__ import annotations

import math
import time
from argparse import Namespace

from rich.text import Text

from onward.cli import door
from onward.cli.screen import Screen, facts, indented, print_story, print_table, state_text
from onward.cli.text import age, clock, local, readable, safe, short, span
from onward.cli.timeline import Story
from onward.cli.views import record_json, task_json
from onward.core.record import Record
from onward.core.task import NEEDS_A_PERSON, Reason, State, Task, Tasks
from onward.service import Service

PAGE = 1000
MOST = 2000
"""Characters of an input or a result that are shown to people."""

ROOM_FOR_WHOLE_IDS = 100
"""Columns from which on a table of tasks has room for whole ids; below it shows their last eight characters."""


async def list_tasks(args: Namespace) -> int:
    """`onward list`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        tasks, cursor = await app.list(
            state=args.state, task=args.task, queue=args.queue, limit=args.limit, cursor=args.cursor
        )
    if screen.json:
        screen.document({"tasks": [task_json(task) for task in tasks], "next": cursor})
    elif tasks:
        _print_tasks(screen, tasks)
    else:
        screen.aside("no tasks" if args.cursor is None else "no more tasks")
    if cursor is not None:
        screen.aside((f"more: onward list --cursor {cursor}", "dim"))
    return 0


def _print_tasks(screen: Screen, tasks: Tasks) -> None:
    now = time.time()
    length = 26 if screen.out.width >= ROOM_FOR_WHOLE_IDS else 8
    rows = [
        (
            Text(task.task_id[-length:]),
            state_text(task.state),
            Text(safe(task.task)),
            Text(safe(task.queue)),
            Text(age(now - task.created_at), "dim"),
            Text(situation(task, now), "dim"),
        )
        for task in tasks
    ]
    print_table(screen.out, ["ID", "STATE", "TASK", "QUEUE", "AGE", ""], rows, max(length, screen.out.width // 5))


def situation(task: Task, now: float) -> str:
    """Why a task is where it is, in a few words."""
    if task.state is State.COMPLETED:
        return "" if task.result is None else short(readable(task.result), 200)
    if task.state is State.FAILED:
        return short((task.error or {}).get("message", ""), 200)
    if task.state is State.CANCELLED:
        return ""
    if task.reason in NEEDS_A_PERSON:
        return f"{task.reason}: waits for a person"
    attempt = f", attempt {task.attempt}" if task.attempt > 1 else ""
    if task.due_at is not None and math.isfinite(task.due_at):
        return f"{task.reason} until {clock(task.due_at)} ({span(task.due_at - now)}){attempt}"
    if task.reason == Reason.RUNNING:
        return f"on worker {short((task.worker or '')[-8:])}{attempt}"
    return f"{safe(task.reason)}{attempt}"


async def show(args: Namespace) -> int:
    """`onward show`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        task = await app.get(await door.whole_id(app.service, args.id))
        records = await journal(app.service, task.task_id)
    if screen.json:
        screen.document({**task_json(task), "journal": [record_json(record) for record in records]})
    else:
        print_task(screen, task)
        print_journal(screen, records)
    return 0


async def journal(service: Service, task_id: str) -> list[Record]:
    """The whole journal."""
    records: list[Record] = []
    while len(page := await service.journal(task_id, records[-1].seq if records else 0, PAGE)) == PAGE:
        records += page
    return records + page


def print_task(screen: Screen, task: Task) -> None:
    """A task, in a few facts."""
    now = time.time()
    ended = "" if task.finished_at is None else f" · took {span(task.finished_at - task.created_at)}"
    why = situation(task, now) if not task.ended else ""
    screen.say(
        (safe(task.task), "bold"), "  ", state_text(task.state), f"  {why}".rstrip(), (ended, "dim")
    )  # fmt: skip
    error = task.error or {}
    screen.block(
        indented(
            facts(
                [
                    ("id", task.task_id),
                    ("input", _value(task.input)),
                    ("result", _value(task.result)),
                    ("error", Text(safe(f"{error.get('type')}: {error.get('message')}"), "red") if error else None),
                    ("created", f"{local(task.created_at)} ({age(now - task.created_at)} ago)"),
                    ("deadline", None if task.deadline_at is None else local(task.deadline_at)),
                    ("queue", f"{task.queue} · priority {task.priority} · attempt {task.attempt}"),
                    ("key", task.key),
                    ("labels", ", ".join(f"{k}={v}" for k, v in task.labels.items()) or None),
                    ("worker", task.worker),
                ]
            )
        )
    )


def _value(value: object) -> str | None:
    text = None if value is None else readable(value)
    if text is None or len(text) <= MOST:
        return text
    return f"{text[:MOST]}… ({len(text):,} characters; --json has all of them)"


def print_journal(screen: Screen, records: list[Record]) -> None:
    """A journal as a timeline, with the time since the submit at the left."""
    story = Story()
    lines = [line for record in records for line in story.tell(record)]
    screen.say()
    print_story(screen.out, lines, story.began or 0.0)


async def cancel(args: Namespace) -> int:
    """`onward cancel`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        task = await app.cancel(await door.whole_id(app.service, args.id))
    return _changed(screen, task, "is cancelled")


async def resume(args: Namespace) -> int:
    """`onward resume`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        task = await app.resume(await door.whole_id(app.service, args.id))
    return _changed(screen, task, "is completed" if task.state is State.COMPLETED else "goes on")


async def prioritize(args: Namespace) -> int:
    """`onward prioritize`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        task = await app.prioritize(await door.whole_id(app.service, args.id), args.priority)
    return _changed(screen, task, f"has priority {task.priority}")


def _changed(screen: Screen, task: Task, what: str) -> int:
    if screen.json:
        screen.document(task_json(task))
    else:
        screen.say(f"task {task.task_id} ", ("(", "dim"), (safe(task.task), "dim"), (") ", "dim"), what)
    return 0
