"""cancel, pause, resume, prioritize, prune with --all: everything that matches, counted first, and only after a yes."""

from __future__ import annotations

import sys
from argparse import Namespace

from rich.text import Text

from onward.cli.args import connect as door
from onward.cli.args.filters import which
from onward.cli.output.screen import Screen
from onward.cli.output.text import count, safe
from onward.core.views import Acted
from onward.errors import UsageError

DONE = {"cancel": "cancelled", "pause": "paused", "resume": "resumed", "prioritize": "changed", "prune": "pruned"}


async def on_all(args: Namespace) -> int:
    """The command, on all that match. Exit status 2 when nobody said yes."""
    screen, verb = Screen(args), str(args.command)
    action, priority = ("priority", args.priority) if verb == "prioritize" else (verb, None)
    async with door.opened(args) as app:
        wanted = await which(args, app.service)
        if not wanted.keys() - {"whose"}:
            raise UsageError(
                f"--all needs something to match, such as --state or --name; `onward {verb} --help` lists it"
            )
        many, more = await app.service.count(**wanted)
        if many and not args.yes and not _allowed(screen, verb, many, more=more):
            return UsageError.exit_status
        ids = await app.service.bulk.find(action, many, priority=priority, **wanted)
        acted = await app.service.bulk.act(action, ids, priority)
    if screen.json:
        refused = [{"task_id": one.task_id, "code": one.code, "detail": one.detail} for one in acted.refused]
        screen.document(
            {"action": verb, "matched": acted.matched, "done": acted.done, "refused": refused, "more": more}
        )
    else:
        _print(screen, verb, acted, more=more)
    return 0


def _print(screen: Screen, verb: str, acted: Acted, *, more: bool) -> None:
    if not acted.matched:
        screen.aside("no task matches, so nothing was done")
        return
    screen.say(f"{DONE[verb]}: {count(acted.done, 'task')} of {acted.matched:,}")
    for one in acted.refused:
        screen.aside((f"not {one.task_id}: {safe(one.detail)}", "yellow"))
    unnamed = acted.matched - acted.done - len(acted.refused)
    if unnamed:
        screen.aside((f"and {unnamed:,} more", "yellow"))
    if more:
        screen.aside("there may be more that match: type it again")


def _allowed(screen: Screen, verb: str, many: int, *, more: bool) -> bool:
    """Ask, with the count; where nobody can be asked, say what to do."""
    tasks = f"{many:,} or more tasks" if more else count(many, "task")
    if sys.stdin.isatty() and sys.stderr.isatty() and not screen.json:
        screen.err.print(Text(f"{verb} {tasks}? [y/N] "), end="")
        return input().strip().lower() in {"y", "yes"}
    if screen.json:
        screen.document({"action": verb, "matched": many, "done": 0, "refused": [], "more": more})
    sys.stderr.write(f"onward: {tasks} would be {DONE[verb]}; say --yes when that is what you want\n")
    return False
