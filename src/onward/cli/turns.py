"""A turn of an agent: exactly what its model saw, and what it said."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from onward.cli.screen import Screen
from onward.cli.text import safe
from onward.cli.views import payload
from onward.core import record as r
from onward.core import wire
from onward.core.task import Task
from onward.errors import UsageError
from onward.service import Service

_MODEL = re.compile(r"(^|\])model(#\d+)?$")
"""The keys of steps in which a model is asked."""


async def show(screen: Screen, service: Service, task: Task, records: Sequence[r.Record], number: int) -> int:
    """`onward show ID --turn N`."""
    asked = [(record, said) for record in records if (said := _asked(record)) is not None]
    if number > len(asked):
        count = f"{len(asked)} turns" if asked else "no turns: it is no agent, or its model was not asked yet"
        raise UsageError(f"task {task.task_id} has {count}; there is no turn {number}")
    record, turn = asked[number - 1]
    if record.dropped:
        raise UsageError(f"turn {number} of task {task.task_id} was dropped: checkpoint {record.dropped} stands for it")
    names = [turn["asked"]["system"], *turn["asked"]["shown"], turn["id"]]
    found = await service.contents(task.task_id, names)
    messages = [wire.decode(found[name]) if name in found else {"role": "?", "content": "(gone)"} for name in names]
    if screen.json:
        told = {
            "turn": number,
            "model": turn["asked"]["model"],
            "usage": turn.get("usage"),
            "finish": turn.get("finish"),
        }
        screen.document({**told, "messages": messages[:-1], "reply": messages[-1]})
        return 0
    for message in messages:
        screen.say((safe(str(message["role"])), "bold"), *_calls(message))
        screen.say(safe(str(message.get("content") or "")))
        screen.say()
    return 0


def _asked(record: r.Record) -> dict[str, Any] | None:
    """What a model call recorded."""
    if record.kind != r.STEP_DONE:
        return None
    if record.dropped:
        return {} if _MODEL.search(record.key) else None
    said = payload(record)
    result = said.get("result") if isinstance(said, dict) else None
    return result if isinstance(result, dict) and "asked" in result and "id" in result else None


def _calls(message: dict[str, Any]) -> list[str]:
    calls = [f"{one['function']['name']}({one['function']['arguments']})" for one in message.get("tool_calls", ())]
    return [f"  {safe(call)}" for call in calls]
