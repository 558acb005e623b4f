"""list, show, cancel, resume, prioritize."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from onward.cli.args import connect as door
from onward.cli.args.filters import which
from onward.cli.commands import bulk, turns
from onward.cli.output.screen import Screen, facts, indented, print_story, state_text
from onward.cli.output.table import Column, fixed, number, print_table
from onward.cli.output.text import age, clock, count, local, readable, safe, short, span
from onward.cli.output.timeline import Mark, Story
from onward.core.journal.explain import Explanation
from onward.core.journal.open_waits import Open, OpenWaits, plain_key
from onward.core.journal.turns import model_call
from onward.core.record import SLEEP, Record
from onward.core.task import HEARS, NEEDS_A_PERSON, Reason, State, Task, Tasks
from onward.core.usage import Usage
from onward.errors import UsageError
from onward.service.serialize import payload, record_json, task_json, why_json
from onward.service.service import Service
from onward.store.port.paging import whole_journal

MOST = 2000
"""Characters of an input or a result that are shown to people."""

COLUMNS = (
    fixed("ID"),
    fixed("STATE"),
    Column("TASK"),
    Column("QUEUE", 6, drop=2),
    number("AGE", drop=1),
    Column("", 16),
)
MOST_JOURNALS = 50
"""Waiting tasks of one page whose journals are read for what they wait for."""


async def list_tasks(args: Namespace) -> int:
    """`onward list`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        asked = await which(args, app.service)
        tasks, cursor = await app.service.list(**asked, key=args.key, limit=args.limit, cursor=args.cursor)
        waits = {task.task_id: await standing(app.service, task) for task in _hearing(tasks)}
        whys = await app.service.explainer.of(tasks)
    if screen.json:
        told = {task.task_id: {"why": why_json(whys[task.task_id])} for task in tasks}
        found = [task_json(task) | waits_json(waits.get(task.task_id, [])) | told[task.task_id] for task in tasks]
        screen.document({"tasks": found, "next": cursor})
    elif tasks:
        _print_tasks(screen, tasks, waits, whys)
    else:
        screen.aside("no tasks" if args.cursor is None else "no more tasks")
    if cursor is not None:
        again = "onward list" if not asked else "the same"
        screen.aside((f"more: {again} --cursor {cursor}", "dim"))
    return 0


def _hearing(tasks: Tasks) -> Tasks:
    return [task for task in tasks if task.reason in HEARS][:MOST_JOURNALS]


async def standing(service: Service, task: Task) -> list[Open]:
    """What a task waits for."""
    found = OpenWaits(task.task_id)
    for record in await journal(service, task.task_id):
        found.read(record)
    return found.open


def waits_json(waits: Sequence[Open]) -> dict[str, Any]:
    """What a task waits for, for programs."""
    return {"waits_for": [one.json() for one in waits]}


def _print_tasks(screen: Screen, tasks: Tasks, waits: dict[str, list[Open]], whys: dict[str, Explanation]) -> None:
    now = time.time()
    length = 26 if screen.out.width >= door.ROOM_FOR_WHOLE_IDS else 8
    rows = [
        (
            Text(task.task_id[-length:]),
            state_text(task.state),
            Text(safe(task.task)),
            Text(safe(task.queue)),
            Text(age(now - task.created_at), "dim"),
            Text(situation(task, now, waits.get(task.task_id, []), whys[task.task_id]), "dim"),
        )
        for task in tasks
    ]
    print_table(screen.out, COLUMNS, rows)


def situation(task: Task, now: float, waits: Sequence[Open] = (), why: Explanation | None = None) -> str:
    """Why a task is where it is, in a few words."""
    if task.state is State.COMPLETED:
        return "" if task.result is None else short(readable(task.result), 200)
    if task.state is State.FAILED:
        return short((task.error or {}).get("message", ""), 200)
    if task.state is State.CANCELLED:
        return ""
    if task.reason in NEEDS_A_PERSON:
        return f"{task.reason}: waits for a person"
    if task.reason in HEARS and waits:
        more = f" (and {count(len(waits) - 1, 'more wait')})" if len(waits) > 1 else ""
        return f"{short(waits[0].words, 200)}{more} · {waits[0].command}"
    if task.reason == Reason.CANCELLING:
        return "cancelling: what it did is being undone"
    attempt = f", attempt {task.attempt}" if task.attempt > 1 else ""
    if why is not None and why.text:
        return told_why(task, why, now)
    if task.due_at is not None and math.isfinite(task.due_at):
        return f"{task.reason} until {clock(task.due_at)} ({span(task.due_at - now)}){attempt}"
    if task.reason == Reason.RUNNING:
        return f"on worker {short((task.worker or '')[-8:])}{attempt}"
    return f"{safe(task.reason).replace('in_doubt', 'in doubt')}{attempt}"


def told_why(task: Task, why: Explanation, now: float) -> str:
    """Why a task is where it is, with the times."""
    parts = [safe(why.text)]
    if why.until is not None:
        parts[0] += f" until {clock(why.until)} ({span(why.until - now)})"
    elif why.since is not None and task.reason != Reason.QUEUED:
        parts[0] += f" for {age(now - why.since)}"
    if task.reason == Reason.RUNNING:
        parts.append(f"on worker {short((task.worker or '')[-8:])}")
    return " · ".join(parts)


async def show(args: Namespace) -> int:
    """`onward show`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        task = await app.get(await door.whole_id(app.service, args.id))
        if args.turns:
            return await turns.show_all(screen, app.service, task)
        if args.record is not None:
            return await turns.show_record(screen, app.service, task, args.record)
        records = await journal(app.service, task.task_id)
        if args.turn is not None:
            return await turns.show(screen, app.service, task, records, args.turn)
    story = Story(task.task_id)
    lines = [line for record in records for line in story.tell(record) if line.mark is not Mark.TEXT]
    waits = [] if task.ended else _still_waited_for(task, story.standing.open)
    undone = _undone(task, records, story.standing)
    if screen.json:
        told = {**task_json(task), **waits_json(waits), **undone}
        screen.document({**told, "journal": [record_json(record) for record in records]})
    else:
        print_task(screen, task, waits, undone)
        screen.say()
        print_story(screen.out, [story.as_it_stands(line) for line in lines], story.began or 0.0)
        if any(model_call(record) for record in records):
            screen.aside(
                (f"onward show {task.task_id[-8:]} --turn N: what its model saw and said; --turns lists them", "dim")
            )
    return 0


def _still_waited_for(task: Task, waits: Sequence[Open]) -> list[Open]:
    """What keeps the task from going on: nothing of it where only `resume` helps, and no sleep whose time has passed."""
    if task.reason in NEEDS_A_PERSON:
        return []
    now = time.time()
    return [one for one in waits if one.kind != SLEEP or float(one.payload.get("until", math.inf)) > now]


def _undone(task: Task, records: list[Record], found: OpenWaits) -> dict[str, list[str]]:
    """What an end took back, what it could not, and what nobody knows of."""
    if task.state not in {State.FAILED, State.CANCELLED}:
        return {}
    last = payload(records[-1]) if records else {}
    said = task.error or (last if isinstance(last, dict) else {})
    return {
        "undone": said.get("undone", []),
        "not_undone": said.get("not_undone", []),
        "in_doubt": found.unsettled,
    }


async def journal(service: Service, task_id: str) -> list[Record]:
    """The whole journal."""
    return await whole_journal(service.journal, task_id)


def print_task(
    screen: Screen, task: Task, waits: Sequence[Open] = (), undone: dict[str, list[str]] | None = None
) -> None:
    """A task, in a few facts."""
    now = time.time()
    keys = {name: ", ".join(plain_key(key) for key in keys) for name, keys in (undone or {}).items() if keys}
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
                    ("unfinished", _value(task.partial)),
                    ("undone", keys.get("undone")),
                    ("not undone", Text(keys["not_undone"], "red") if "not_undone" in keys else None),
                    ("in doubt", Text(f"{keys['in_doubt']} (nobody knows)", "red") if "in_doubt" in keys else None),
                    *[("waits for", _wait(one)) for one in waits],
                    ("created", f"{local(task.created_at)} ({age(now - task.created_at)} ago)"),
                    ("deadline", None if task.deadline_at is None else local(task.deadline_at)),
                    ("queue", f"{task.queue} · priority {task.priority} · attempt {task.attempt}"),
                    ("usage", None if task.usage is None else _usage(task.usage)),
                    ("key", task.key),
                    ("labels", ", ".join(f"{k}={v}" for k, v in task.labels.items()) or None),
                    ("worker", task.worker),
                    ("parent", task.parent),
                ]
            )
        )
    )


def _usage(usage: Usage) -> str:
    """What models took, in a line; with the children where they took some."""
    below = usage.with_children
    more = f" · with children {_taken(below)}" if below is not None and below.to_json() != usage.to_json() else ""
    return f"{_taken(usage)}{more}"


def _taken(usage: Usage) -> str:
    calls = "an unknown number of calls" if usage.calls is None else count(usage.calls, "call")
    tokens = [f"{'?' if many is None else format(many, ',')} tokens {way}" for many, way in _ways(usage)]
    cost = "price unknown" if usage.cost_usd is None else f"${usage.cost_usd:,.4f}"
    return ", ".join([calls, *tokens, cost])


def _ways(usage: Usage) -> list[tuple[int | None, str]]:
    return [(usage.input_tokens, "in"), (usage.output_tokens, "out")]


def _wait(one: Open) -> Text:
    return Text.assemble(one.words, "  ", (one.command, "bold")) if one.command else Text(one.words)


def _value(value: object) -> str | None:
    text = None if value is None else readable(value)
    if text is None or len(text) <= MOST:
        return text
    return f"{text[:MOST]}… ({len(text):,} characters; --json has all of them)"


async def cancel(args: Namespace) -> int:
    """`onward cancel`."""
    if args.all:
        return await bulk.on_all(args)
    one_alone(args)
    screen = Screen(args)
    async with door.opened(args) as app:
        task = await app.cancel(await door.whole_id(app.service, args.id))
    what = "is cancelled"
    if task.state is not State.CANCELLED:
        what = f"is being cancelled, what it did is undone first: onward follow {task.task_id[-8:]}"
    if task.in_flight:
        was = "was" if task.in_flight == 1 else "were"
        what += f" ({count(task.in_flight, 'task')} of its tree {was} in the middle of something)"
    return _changed(screen, task, what)


async def pause(args: Namespace) -> int:
    """`onward pause`."""
    if args.all:
        return await bulk.on_all(args)
    one_alone(args)
    screen = Screen(args)
    async with door.opened(args) as app:
        task = await app.pause(await door.whole_id(app.service, args.id))
    what = f"rests until: onward resume {task.task_id[-8:]}"
    if task.in_flight:
        was = "comes" if task.in_flight == 1 else "come"
        what += f" ({count(task.in_flight, 'task')} of its tree {was} to the end of a step first)"
    return _changed(screen, task, what)


async def resume(args: Namespace) -> int:
    """`onward resume`."""
    if args.all:
        return await bulk.on_all(args)
    one_alone(args)
    screen = Screen(args)
    async with door.opened(args) as app:
        task = await app.resume(await door.whole_id(app.service, args.id))
    return _changed(screen, task, "is completed" if task.state is State.COMPLETED else "goes on")


async def prune(args: Namespace) -> int:
    """`onward prune`."""
    if args.all:
        return await bulk.on_all(args)
    one_alone(args)
    screen = Screen(args)
    async with door.opened(args) as app:
        task_id = await door.whole_id(app.service, args.id)
        many = await app.prune(task_id)
    if screen.json:
        screen.document({"task_id": task_id, "pruned": many})
    else:
        below = f", with {count(many - 1, 'task')} that it started" if many > 1 else ""
        screen.say(f"{task_id[-8:]} is forgotten{below}")
    return 0


async def prioritize(args: Namespace) -> int:
    """`onward prioritize`."""
    if args.all:
        return await bulk.on_all(args)
    one_alone(args)
    screen = Screen(args)
    async with door.opened(args) as app:
        task = await app.prioritize(await door.whole_id(app.service, args.id), args.priority)
    return _changed(screen, task, f"has priority {task.priority}")


def one_alone(args: Namespace) -> None:
    """An id and something to match are two ways to say which; together they say neither."""
    filters = ("state", "reason", "name", "queue", "label", "parent", "tenant", "since", "until", "text")
    if given := [f"--{name}" for name in filters if getattr(args, name)]:
        raise UsageError(f"{given[0]} goes with --all, not with an id; leave one of them out")


def _changed(screen: Screen, task: Task, what: str) -> int:
    if screen.json:
        screen.document(task_json(task))
    else:
        screen.say(f"task {task.task_id} ", ("(", "dim"), (safe(task.task), "dim"), (") ", "dim"), what)
    return 0
