"""state, patch: show and change the state of an agent."""

from __future__ import annotations

from argparse import Namespace

from onward.cli.args import connect
from onward.cli.commands.submit import read_input
from onward.cli.output.screen import Screen
from onward.cli.output.text import safe
from onward.errors import UsageError

MAX_STATE_BYTES = 16_000
"""Bytes of a state that are printed; --json has all of it."""


async def state(args: Namespace) -> int:
    """`onward state`."""
    from onward.core.slice import state_slice  # noqa: PLC0415 -- pydantic

    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        agent_state = await backend.state(await connect.resolve_task_id(backend, args.id))
    if screen.json:
        screen.document(agent_state.model_dump(mode="json"))
        return 0
    for line in state_slice(agent_state, MAX_STATE_BYTES).text.splitlines():
        screen.say(safe(line))
    return 0


async def patch(args: Namespace) -> int:
    """`onward patch`."""
    screen = Screen(args)
    change = read_input(args.change)
    if not isinstance(change, dict):
        raise UsageError('a patch is a JSON object, such as {"replace_plan": ["look", "act"]}: `onward patch --help`')
    async with connect.open_backend(args) as backend:
        task_id = await connect.resolve_task_id(backend, args.id)
        await backend.patch(task_id, change)
        agent_state = await backend.state(task_id)
    if screen.json:
        screen.document(agent_state.model_dump(mode="json"))
    else:
        screen.say(f"task {task_id} applies it at its next turn; `onward state {task_id[-8:]}` shows its state")
    return 0
