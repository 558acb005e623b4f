"""cancel, pause, resume, prioritize with --all: everything that matches, counted first, and only after a yes."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import Any

from rich.text import Text

from onward.app import Onward
from onward.cli import door
from onward.cli.screen import Screen
from onward.cli.text import count, safe
from onward.cli.which import which
from onward.core.task import Task
from onward.errors import OnwardError, UsageError

PAGE = 1000
SHOWN = 20
"""Tasks that could not be changed which are named."""

DONE = {"cancel": "cancelled", "pause": "paused", "resume": "resumed", "prioritize": "changed"}
Act = Callable[[str], Awaitable[Task]]


async def on_all(args: Namespace) -> int:
    """The command, on all that match. Exit status 2 when nobody said yes."""
    screen, verb = Screen(args), str(args.command)
    async with door.opened(args) as app:
        wanted = await which(args, app.service)
        if not wanted:
            raise UsageError(
                f"--all needs something to match, such as --state or --name; `onward {verb} --help` lists it"
            )
        ids = await _matching(app, wanted)
        if ids and not args.yes and not _allowed(screen, verb, len(ids), await _some(app, ids)):
            return UsageError.exit_status
        done, refused = await _act(ids, _verb(app, args))
    if screen.json:
        screen.document({"action": verb, "matched": len(ids), "done": done, "refused": refused[:SHOWN]})
        return 0
    if not ids:
        screen.aside("no task matches, so nothing was done")
        return 0
    screen.say(f"{DONE[verb]}: {count(done, 'task')} of {len(ids):,}")
    for one in refused[:SHOWN]:
        screen.aside((f"not {one['task_id']}: {safe(one['detail'])}", "yellow"))
    if len(refused) > SHOWN:
        screen.aside((f"and {len(refused) - SHOWN:,} more", "yellow"))
    return 0


async def _matching(app: Onward, wanted: dict[str, Any]) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await app.service.list(**wanted, limit=PAGE, cursor=cursor)
        found += [task.task_id for task in page]
        if cursor is None:
            return found


async def _some(app: Onward, ids: list[str]) -> str:
    """What a person is shown before saying yes."""
    names: dict[str, int] = {}
    for task_id in ids[:PAGE]:
        task = await app.service.get(task_id)
        names[task.task] = names.get(task.task, 0) + 1
    told = sorted(names.items(), key=lambda item: -item[1])
    return ", ".join(f"{many:,} {safe(name)}" for name, many in told[:5]) + (", …" if len(told) > 5 else "")


def _allowed(screen: Screen, verb: str, many: int, some: str) -> bool:
    """Ask, with the count; where nobody can be asked, say what to do."""
    tasks = count(many, "task")
    if sys.stdin.isatty() and sys.stderr.isatty() and not screen.json:
        screen.err.print(Text(f"{verb} {tasks} ({some})? [y/N] "), end="")
        return input().strip().lower() in {"y", "yes"}
    if screen.json:
        screen.document({"action": verb, "matched": many, "done": 0, "refused": []})
    sys.stderr.write(f"onward: {tasks} would be {DONE[verb]} ({some}); say --yes when that is what you want\n")
    return False


def _verb(app: Onward, args: Namespace) -> Act:
    if args.command == "prioritize":
        return lambda task_id: app.service.prioritize(task_id, args.priority)
    verbs: dict[str, Act] = {"cancel": app.service.cancel, "pause": app.service.pause, "resume": app.service.resume}
    return verbs[args.command]


async def _act(ids: list[str], verb: Act) -> tuple[int, list[dict[str, str]]]:
    done, refused = 0, []
    for task_id in ids:
        try:
            await verb(task_id)
            done += 1
        except OnwardError as error:  # it has ended meanwhile, or its state forbids it: the others go on
            refused.append({"task_id": task_id, "code": error.code, "detail": str(error)})
    return done, refused
