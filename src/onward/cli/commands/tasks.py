"""list, show, cancel, pause, resume, prioritize, prune."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rich.text import Text

from onward.cli.args import connect
from onward.cli.args.filters import task_filters
from onward.cli.commands import bulk, turns
from onward.cli.output.screen import Screen, facts, indented, print_lines, state_text
from onward.cli.output.table import Column, fixed, number, print_table
from onward.cli.output.text import age, clock, count, local, readable, safe, short, span
from onward.cli.output.timeline import Line, LineRenderer, Mark
from onward.core.journal.explain import Explanation
from onward.core.journal.open_waits import Open, OpenWaits, plain_key
from onward.core.journal.reader import fields
from onward.core.journal.turns import model_call
from onward.core.record import SLEEP, Record
from onward.core.task import HEARS, NEEDS_A_PERSON, Reason, State, Task, Tasks
from onward.core.usage import Usage
from onward.errors import UsageError
from onward.service.serialize import record_json, task_json, why_json
from onward.store.port.paging import journal_pages

MAX_VALUE_CHARS = 2000
"""Characters of an input or a result that are printed."""

COLUMNS = (
    fixed("ID"),
    fixed("STATE"),
    Column("TASK"),
    Column("QUEUE", 6, drop=2),
    number("AGE", drop=1),
    Column("", 16),
)
MAX_JOURNALS = 50
"""Waiting tasks of one page whose journals are read to show their open waits."""


async def list_tasks(args: Namespace) -> int:
    """`onward list`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        filters = await task_filters(args, backend)
        tasks, explanations, cursor = await backend.list_explained(
            **filters, key=args.key, limit=args.limit, cursor=args.cursor
        )
        waits = {task.task_id: await open_waits(backend, task) for task in _waiting(tasks)}
    if screen.json:
        items = [
            task_json(task) | waits_json(waits.get(task.task_id, [])) | {"why": why_json(explanations[task.task_id])}
            for task in tasks
        ]
        screen.document({"tasks": items, "next": cursor})
    elif tasks:
        _print_tasks(screen, tasks, waits, explanations)
    else:
        screen.aside("no tasks" if args.cursor is None else "no more tasks")
    if cursor is not None:
        again = "onward list" if not filters else "the same"
        screen.aside((f"more: {again} --cursor {cursor}", "dim"))
    return 0


def _waiting(tasks: Tasks) -> Tasks:
    return [task for task in tasks if task.reason in HEARS][:MAX_JOURNALS]


async def open_waits(backend: connect.Backend, task: Task) -> list[Open]:
    """The open waits of a task."""
    waits = OpenWaits(task.task_id)
    async for page in journal_pages(backend.journal, task.task_id):
        for record in page:
            waits.read(record)
    return waits.open


def waits_json(waits: Sequence[Open]) -> dict[str, Any]:
    """The open waits of a task as JSON."""
    return {"waits_for": [wait.json() for wait in waits]}


def _print_tasks(
    screen: Screen, tasks: Tasks, waits: dict[str, list[Open]], explanations: dict[str, Explanation]
) -> None:
    now = time.time()
    length = 26 if screen.out.width >= connect.FULL_ID_WIDTH else 8
    rows = [
        (
            Text(task.task_id[-length:]),
            state_text(task.state),
            Text(safe(task.task)),
            Text(safe(task.queue)),
            Text(age(now - task.created_at), "dim"),
            Text(situation(task, now, waits.get(task.task_id, []), explanations[task.task_id]), "dim"),
        )
        for task in tasks
    ]
    print_table(screen.out, COLUMNS, rows)


def situation(task: Task, now: float, waits: Sequence[Open] = (), explanation: Explanation | None = None) -> str:
    """The result of a task, or why it does not go on, in a few words."""
    if task.state is State.COMPLETED:
        return "" if task.result is None else short(readable(task.result), 200)
    if task.state is State.FAILED:
        return short((task.error or {}).get("message", ""), 200)
    if task.state is State.CANCELLED:
        return ""
    if task.reason in NEEDS_A_PERSON:
        why = safe(explanation.text) if explanation is not None and explanation.text else f"{task.reason}"
        return f"{short(why, 200)} · onward resume {task.task_id[-8:]}"
    if task.reason in HEARS and waits:
        more = f" (and {count(len(waits) - 1, 'more wait')})" if len(waits) > 1 else ""
        return f"{short(waits[0].words, 200)}{more} · {waits[0].command}"
    if task.reason == Reason.CANCELLING:
        return "cancelling: what it did is being undone"
    attempt = f", attempt {task.attempt}" if task.attempt > 1 else ""
    if explanation is not None and explanation.text:
        return _explain(task, explanation, now)
    if task.due_at is not None and math.isfinite(task.due_at):
        return f"{task.reason} until {clock(task.due_at)} ({span(task.due_at - now)}){attempt}"
    if task.reason == Reason.RUNNING:
        return f"on worker {short((task.worker or '')[-8:])}{attempt}"
    return f"{safe(task.reason).replace('in_doubt', 'in doubt')}{attempt}"


def _explain(task: Task, explanation: Explanation, now: float) -> str:
    parts = [safe(explanation.text)]
    if explanation.until is not None:
        parts[0] += f" until {clock(explanation.until)} ({span(explanation.until - now)})"
    elif explanation.since is not None and task.reason != Reason.QUEUED:
        parts[0] += f" for {age(now - explanation.since)}"
    if task.reason == Reason.RUNNING:
        parts.append(f"on worker {short((task.worker or '')[-8:])}")
    return " · ".join(parts)


async def show(args: Namespace) -> int:
    """`onward show`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        task = await backend.get(await connect.resolve_task_id(backend, args.id))
        if args.turns:
            return await turns.show_all(screen, backend, task)
        if args.record is not None:
            return await turns.show_record(screen, backend, task, args.record)
        if args.turn is not None:
            return await turns.show(screen, backend, task, args.turn)
        return await _show_journal(screen, backend, task)


async def _show_journal(screen: Screen, backend: connect.Backend, task: Task) -> int:
    """Print a task and its journal. The records are not kept: a journal may be larger than the memory."""
    renderer, lines, last, has_turns = LineRenderer(task.task_id), list[Line](), None, False
    async for page in journal_pages(backend.journal, task.task_id):
        for record in page:
            lines += [line for line in renderer.render(record) if line.mark is not Mark.TEXT and not screen.json]
            has_turns = has_turns or bool(model_call(record))
        last = page[-1]
    waits = [] if task.ended else _effective_waits(task, renderer.open_waits.open)
    undone = _undone(task, last, renderer.open_waits)
    if screen.json:
        records = (
            record_json(record) async for page in journal_pages(backend.journal, task.task_id) for record in page
        )
        await screen.long_document({**task_json(task), **waits_json(waits), **undone}, "journal", records)
    else:
        print_task(screen, task, waits, undone)
        screen.say()
        print_lines(screen.out, [renderer.current(line) for line in lines], renderer.began or 0.0)
        if has_turns:
            screen.aside(
                (f"onward show {task.task_id[-8:]} --turn N: the messages of a turn; --turns lists the turns", "dim")
            )
    return 0


def _effective_waits(task: Task, waits: Sequence[Open]) -> list[Open]:
    """The waits that stop the task: none if only `resume` helps, and no sleep that is over."""
    if task.reason in NEEDS_A_PERSON:
        return []
    now = time.time()
    return [wait for wait in waits if wait.kind != SLEEP or float(wait.payload.get("until", math.inf)) > now]


def _undone(task: Task, last: Record | None, waits: OpenWaits) -> dict[str, list[str]]:
    """The steps that were undone at the end of the task, those that were not, and those in doubt."""
    if task.state not in {State.FAILED, State.CANCELLED}:
        return {}
    end = task.error or ({} if last is None else fields(last))
    return {
        "undone": end.get("undone", []),
        "not_undone": end.get("not_undone", []),
        "in_doubt": waits.unsettled,
    }


def print_task(
    screen: Screen, task: Task, waits: Sequence[Open] = (), undone: dict[str, list[str]] | None = None
) -> None:
    """Print the facts of a task, without its journal."""
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
                    ("values", _unreadable(task)),
                    ("error", Text(safe(f"{error.get('type')}: {error.get('message')}"), "red") if error else None),
                    ("unfinished", _value(task.partial)),
                    ("undone", keys.get("undone")),
                    ("not undone", Text(keys["not_undone"], "red") if "not_undone" in keys else None),
                    ("in doubt", Text(f"{keys['in_doubt']} (unknown)", "red") if "in_doubt" in keys else None),
                    *[("waits for", _wait_text(wait)) for wait in waits],
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


def _unreadable(task: Task) -> Text | None:
    """Why values of a task are not shown."""
    if task.erased:
        return Text("erased: the key that encrypted them was destroyed", "yellow")
    return Text("encrypted: this process has not the key (ONWARD_ENCRYPTION_KEYS)", "yellow") if task.left_out else None


def _usage(usage: Usage) -> str:
    """The model usage of a task in a line; with that of its children, if they have any."""
    total = usage.with_children
    more = f" · with children {_usage_words(total)}" if total is not None and total.to_json() != usage.to_json() else ""
    return f"{_usage_words(usage)}{more}"


def _usage_words(usage: Usage) -> str:
    calls = "an unknown number of calls" if usage.calls is None else count(usage.calls, "call")
    directions = ((usage.input_tokens, "in"), (usage.output_tokens, "out"))
    tokens = [f"{'?' if number is None else format(number, ',')} tokens {way}" for number, way in directions]
    cost = "price unknown" if usage.cost_usd is None else f"${usage.cost_usd:,.4f}"
    return ", ".join([calls, *tokens, cost])


def _wait_text(wait: Open) -> Text:
    return Text.assemble(wait.words, "  ", (wait.command, "bold")) if wait.command else Text(wait.words)


def _value(value: object) -> str | None:
    text = None if value is None else readable(value)
    if text is None or len(text) <= MAX_VALUE_CHARS:
        return text
    return f"{text[:MAX_VALUE_CHARS]}… ({len(text):,} characters; --json has all of them)"


async def cancel(args: Namespace) -> int:
    """`onward cancel`."""
    return await _control(args, lambda backend, task_id: backend.cancel(task_id), _cancelled)


def _cancelled(task: Task) -> str:
    change = "is cancelled"
    if task.state is not State.CANCELLED:
        change = f"is being cancelled; its steps are undone first: onward follow {task.task_id[-8:]}"
    if task.in_flight:
        was = "was" if task.in_flight == 1 else "were"
        change += f" ({count(task.in_flight, 'task')} of its tree {was} in the middle of a step)"
    return change


async def pause(args: Namespace) -> int:
    """`onward pause`."""
    return await _control(args, lambda backend, task_id: backend.pause(task_id), _paused)


def _paused(task: Task) -> str:
    change = f"is paused until: onward resume {task.task_id[-8:]}"
    if task.in_flight:
        verb = "finishes" if task.in_flight == 1 else "finish"
        change += f" ({count(task.in_flight, 'task')} of its tree {verb} a step first)"
    return change


async def resume(args: Namespace) -> int:
    """`onward resume`."""
    words = {State.COMPLETED: "is completed"}
    return await _control(
        args, lambda backend, task_id: backend.resume(task_id), lambda task: words.get(task.state, "goes on")
    )


async def prioritize(args: Namespace) -> int:
    """`onward prioritize`."""

    def act(backend: connect.Backend, task_id: str) -> Awaitable[Task]:
        return backend.prioritize(task_id, args.priority)

    return await _control(args, act, lambda task: f"has priority {task.priority}")


async def _control(
    args: Namespace, act: Callable[[connect.Backend, str], Awaitable[Task]], words: Callable[[Task], str]
) -> int:
    """Act on the task of the given id, or with --all on all that match."""
    if args.all:
        return await bulk.on_all(args)
    _refuse_filters(args)
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        task = await act(backend, await connect.resolve_task_id(backend, args.id))
    if screen.json:
        screen.document(task_json(task))
    else:
        screen.say(f"task {task.task_id} ", ("(", "dim"), (safe(task.task), "dim"), (") ", "dim"), words(task))
    return 0


async def prune(args: Namespace) -> int:
    """`onward prune`."""
    if args.all:
        return await bulk.on_all(args)
    _refuse_filters(args)
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        task_id = await connect.resolve_task_id(backend, args.id)
        pruned = await backend.prune(task_id)
    if screen.json:
        screen.document({"task_id": task_id, "pruned": pruned})
    else:
        below = f", with {count(pruned - 1, 'task')} that it started" if pruned > 1 else ""
        screen.say(f"{task_id[-8:]} is deleted{below}")
    return 0


def _refuse_filters(args: Namespace) -> None:
    """Raises UsageError if filters are given with an id."""
    filters = ("state", "reason", "name", "queue", "label", "parent", "tenant", "since", "until", "text")
    if given := [f"--{name}" for name in filters if getattr(args, name)]:
        raise UsageError(f"{given[0]} goes with --all, not with an id; leave one of them out")
