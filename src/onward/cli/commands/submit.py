"""submit: ask for a task, and on demand wait for it or watch it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onward.app.application import Onward
from onward.cli.args import connect as door
from onward.cli.args.parser import FOREVER
from onward.cli.commands.follow import Person, exit_status, loneliness, person_waits, until_settled, watch
from onward.cli.commands.tasks import waits_json
from onward.cli.output.screen import Screen
from onward.cli.output.text import short
from onward.core.budget import Budget
from onward.core.durations import seconds
from onward.core.journal.open_waits import Open
from onward.core.task import State, Task
from onward.errors import InvalidInput, ResultTimeout, TaskCancelled, TaskFailed, UnknownTask, UsageError
from onward.service.serialize import task_json
from onward.service.submission import SubmitRequest

PATIENCE = 3.0
"""Seconds in which somebody may still come who knows the task."""


async def submit(args: Namespace) -> int:
    """`onward submit`."""
    screen = Screen(args)
    timeout = None if args.wait in (None, FOREVER) else seconds(args.wait, "--wait")
    wish = SubmitRequest(
        args.name,
        read_input(args.input),
        key=args.key,
        priority=args.priority,
        queue=args.queue,
        deadline=args.deadline,
        delay=args.delay,
        labels=dict(args.label),
        group=args.group,
        budget=None if args.budget is None else _budget(read_input(args.budget)),
        webhook=args.webhook,
    )
    async with door.app_of(args) as app:
        if args.after is not None:
            after = await door.whole_id(app.service, args.after)
            wish = await app.service.agent_states.after(after, wish)
        task_id = await _submitted(app, wish, unchecked=args.anyway)
        if args.follow:
            if not screen.live:  # the tree has it in its head
                screen.aside((f"task {task_id}", "dim"))
            return await watch(screen, app, task_id, timeout)
        if args.wait is not None:
            return await _wait(screen, app, task_id, timeout)
        task = await app.service.get(task_id)
    if screen.json:
        screen.document(task_json(task))
        return 0
    print(task_id)
    if screen.live:
        screen.aside((f"watch it with: onward follow {task_id[-8:]}", "dim"))
    return 0


async def _submitted(app: Onward, wish: SubmitRequest, *, unchecked: bool) -> str:
    """The id. A worker that was started in the line before may not have said yet what it does."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            (task_id,) = await app.service.submit([wish], unchecked=unchecked)
        except UnknownTask:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)
        else:
            return task_id


def _budget(said: Any) -> Budget:
    known = [field.name for field in dataclasses.fields(Budget)]
    if not isinstance(said, dict) or not said.keys() <= set(known):
        raise UsageError(f"--budget is a JSON object of {', '.join(known)}")
    return Budget(**said)


async def _wait(screen: Screen, app: Onward, task_id: str, timeout: float | None) -> int:
    """The result on stdout and nothing else there; the id beside it."""
    screen.aside((f"task {task_id}", "dim"))
    try:
        async with loneliness(screen, app, task_id):
            task = await until_settled(app, task_id, timeout)
    except ResultTimeout as late:
        if not screen.json:
            raise
        screen.document(task_json(await app.get(task_id)))
        return late.exit_status
    waits = await person_waits(app, task)
    if screen.json:
        screen.document(task_json(task) | (waits_json(waits) if waits else {}))
    else:
        _print_result(screen, task, waits)
    return exit_status(task)


def _print_result(screen: Screen, task: Task, waits: Sequence[Open]) -> None:
    if task.state is State.FAILED:
        raise TaskFailed(task.task_id, task.task, task.error or {}, task.partial)
    if task.state is State.CANCELLED:
        raise TaskCancelled(task.task_id, task.task)
    if task.state is not State.COMPLETED:
        raise Person(task, waits)
    screen.value(task.result)


def read_input(given: str | None) -> Any:
    """INPUT as a value: JSON, @FILE or - for stdin; None when there is none."""
    if given is None:
        return None
    if given == "-":
        return _json(_utf8(sys.stdin.buffer.read(), "stdin"), "stdin")
    if given.startswith("@"):
        try:
            data = Path(given[1:]).read_bytes()
        except OSError as error:
            raise UsageError(f"the input file {given[1:]!r} cannot be read ({error.strerror})") from None
        return _json(_utf8(data, f"the file {given[1:]!r}"), f"the file {given[1:]!r}")
    return _json(given, "the input")


def _utf8(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where} is not UTF-8 (byte {error.start}); JSON is always UTF-8") from None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidInput(f"{where} is nested too deeply to be read") from None
    except ValueError as error:
        if where != "the input":
            raise InvalidInput(f"{where} is not JSON: {error}") from None
        raise InvalidInput(f"the input {short(text, 40)!r} is not JSON ({error}); {_advice(text)}") from None


def _advice(text: str) -> str:
    """A shell eats quotes, and a text without them is the usual mistake."""
    if text[:1] in {"{", "["}:
        return """put single quotes around the whole, as in '{"name": "value"}', or use @FILE or - for stdin"""
    quoted = short(json.dumps(text, ensure_ascii=False), 42)
    return f"for a text write '{quoted}', with both kinds of quotes; @FILE reads a file and - reads stdin"
