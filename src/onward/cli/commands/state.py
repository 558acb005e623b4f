"""state, patch: what an agent knows, and telling it more."""

from __future__ import annotations

from argparse import Namespace

from onward.cli.args import connect as door
from onward.cli.commands.people import me
from onward.cli.commands.submit import read_input
from onward.cli.output.screen import Screen
from onward.cli.output.text import safe
from onward.errors import UsageError

MOST = 16_000
"""Bytes of a state that are shown to people; --json has all of it."""


async def state(args: Namespace) -> int:
    """`onward state`."""
    from onward.core.slice import state_slice  # noqa: PLC0415 -- pydantic

    screen = Screen(args)
    async with door.opened(args) as app:
        found = await app.state(await door.whole_id(app.service, args.id))
    if screen.json:
        screen.document(found.model_dump(mode="json"))
        return 0
    for line in state_slice(found, MOST).text.splitlines():
        screen.say(safe(line))
    return 0


async def patch(args: Namespace) -> int:
    """`onward patch`."""
    screen = Screen(args)
    change = read_input(args.change)
    if not isinstance(change, dict):
        raise UsageError('a patch is a JSON object, such as {"replace_plan": ["look", "act"]}: `onward patch --help`')
    async with door.opened(args) as app:
        task_id = await door.whole_id(app.service, args.id)
        await app.patch(task_id, change, by=me())
        found = await app.state(task_id)
    if screen.json:
        screen.document(found.model_dump(mode="json"))
    else:
        screen.say(f"task {task_id} takes it in at its next turn; `onward state {task_id[-8:]}` shows what it knows")
    return 0
