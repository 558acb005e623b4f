"""submit: submit a task, and with --wait or --follow wait for its result."""

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

from onward.cli.args import connect
from onward.cli.args.parser import FOREVER
from onward.cli.commands.follow import WaitsForPerson, exit_status, notices, person_waits, until_settled, watch
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

WORKER_START_S = 3.0
"""Time for a worker that just starts to register the handler."""


async def submit(args: Namespace) -> int:
    """`onward submit`."""
    screen = Screen(args)
    timeout = None if args.wait in (None, FOREVER) else seconds(args.wait, "--wait")
    request = SubmitRequest(
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
    async with connect.open_backend(args, create=True) as backend:
        after = None if args.after is None else await connect.resolve_task_id(backend, args.after)
        task_id = await _submit(backend, request, after, unchecked=args.anyway)
        if args.follow:
            if not screen.live:  # the head of the tree has the id
                screen.aside((f"task {task_id}", "dim"))
            return await watch(screen, backend, await backend.get_patiently(task_id), timeout)
        if args.wait is not None:
            return await _wait(screen, backend, task_id, timeout)
        task = await backend.get(task_id)
    if screen.json:
        screen.document(task_json(task))
        return 0
    print(task_id)
    if screen.live:
        screen.aside((f"watch it with: onward follow {task_id[-8:]}", "dim"))
    return 0


async def _submit(backend: connect.Backend, request: SubmitRequest, after: str | None, *, unchecked: bool) -> str:
    """Submit and return the id. Retry for a moment if the handler is unknown: its worker may be starting."""
    end = time.monotonic() + WORKER_START_S
    while True:
        try:
            (task_id,) = await backend.submit([request], after=after, unchecked=unchecked)
        except UnknownTask:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)
        else:
            return task_id


def _budget(limits: Any) -> Budget:
    known = [field.name for field in dataclasses.fields(Budget)]
    if not isinstance(limits, dict) or not limits.keys() <= set(known):
        raise UsageError(f"--budget is a JSON object of {', '.join(known)}")
    return Budget(**limits)


async def _wait(screen: Screen, backend: connect.Backend, task_id: str, timeout: float | None) -> int:
    """Wait, then print only the result on stdout; the id goes to stderr."""
    screen.aside((f"task {task_id}", "dim"))
    try:
        async with notices(screen, backend, task_id):
            task = await until_settled(backend, task_id, timeout)
    except ResultTimeout as timed_out:
        if not screen.json:
            raise
        screen.document(task_json(await backend.get(task_id)))
        return timed_out.exit_status
    waits = await person_waits(backend, task)
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
        raise WaitsForPerson(task, waits)
    screen.value(task.result)


def read_input(given: str | None) -> Any:
    """The value of an argument that is JSON, @FILE, or - for stdin; None if it is not given."""
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
    """How to quote the input. The usual mistake is a string without its own quotes, because the shell removes one pair."""
    if text[:1] in {"{", "["}:
        return """put single quotes around the whole, as in '{"name": "value"}', or use @FILE or - for stdin"""
    quoted = short(json.dumps(text, ensure_ascii=False), 42)
    return f"for a string write '{quoted}', with both kinds of quotes; @FILE reads a file and - reads stdin"
