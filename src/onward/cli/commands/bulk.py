"""cancel, pause, resume, prioritize and prune with --all: act on all tasks that match, after a confirmation with their number."""

from __future__ import annotations

import sys
from argparse import Namespace

from rich.text import Text

from onward.cli.args import connect
from onward.cli.args.filters import task_filters
from onward.cli.output.screen import Screen
from onward.cli.output.text import count, safe
from onward.core.views import Acted
from onward.errors import UsageError

DONE = {"cancel": "cancelled", "pause": "paused", "resume": "resumed", "prioritize": "changed", "prune": "pruned"}


async def on_all(args: Namespace) -> int:
    """Run the command on all tasks that match. Returns exit status 2 if the user does not confirm."""
    screen, verb = Screen(args), str(args.command)
    action, priority = ("priority", args.priority) if verb == "prioritize" else (verb, None)
    async with connect.open_backend(args) as backend:
        filters = await task_filters(args, backend)
        if not filters.keys() - {"tenant"}:
            raise UsageError(f"--all needs a filter, such as --state or --name; `onward {verb} --help` lists them")
        matching, more = await backend.count(**filters)
        if matching and not args.yes and not _confirmed(screen, verb, matching, more=more):
            return UsageError.exit_status
        acted = await backend.act(action, matching, priority=priority, **filters)
    if screen.json:
        refused = [{"task_id": task.task_id, "code": task.code, "detail": task.detail} for task in acted.refused]
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
    for task in acted.refused:
        screen.aside((f"not {task.task_id}: {safe(task.detail)}", "yellow"))
    unlisted = acted.matched - acted.done - len(acted.refused)
    if unlisted:
        screen.aside((f"and {unlisted:,} more", "yellow"))
    if more:
        screen.aside("there may be more that match: run the command again")


def _confirmed(screen: Screen, verb: str, matching: int, *, more: bool) -> bool:
    """Ask the user on a terminal; elsewhere print the number of tasks and the option to use."""
    tasks = f"{matching:,} or more tasks" if more else count(matching, "task")
    if sys.stdin.isatty() and sys.stderr.isatty() and not screen.json:
        screen.err.print(Text(f"{verb} {tasks}? [y/N] "), end="")
        return input().strip().lower() in {"y", "yes"}
    if screen.json:
        screen.document({"action": verb, "matched": matching, "done": 0, "refused": [], "more": more})
    sys.stderr.write(f"onward: {tasks} would be {DONE[verb]}; say --yes if you want that\n")
    return False
