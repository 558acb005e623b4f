"""state: what an agent knows."""

from __future__ import annotations

from argparse import Namespace

from onward.cli import door
from onward.cli.screen import Screen
from onward.cli.text import safe

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
