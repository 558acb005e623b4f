"""A turn of an agent: exactly what its model saw, and what it said."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from onward.cli.screen import Screen
from onward.cli.text import safe, safe_lines
from onward.core import record as r
from onward.core import wire
from onward.core.task import Task
from onward.errors import UsageError
from onward.service import Service
from onward.views import payload

_MODEL = re.compile(r"(^|\])model(#\d+)?$")
"""The keys of steps in which a model is asked."""


async def show(screen: Screen, service: Service, task: Task, records: Sequence[r.Record], number: int) -> int:
    """`onward show ID --turn N`."""
    found = [(record, said) for record in records if (said := model_call(record)) is not None]
    asked = {said["turn"]: said for record, said in found if not record.dropped}
    if number not in asked:
        dropped = max((record.dropped for record, _ in found), default=0)
        if dropped and number < min(asked, default=number + 1):
            raise UsageError(f"turn {number} of task {task.task_id} was dropped: checkpoint {dropped} stands for it")
        count = f"{max(asked)} turns" if asked else "no turns: it is no agent, or its model was not asked yet"
        raise UsageError(f"task {task.task_id} has {count}; there is no turn {number}")
    turn = asked[number]
    names = [turn["asked"]["system"], *turn["asked"]["shown"], turn["id"]]
    kept = await service.contents(task.task_id, names)
    messages = [wire.decode(kept[name]) if name in kept else {"role": "?", "content": "(gone)"} for name in names]
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
        screen.say((safe(message["role"]), "bold"))
        for text in (message.get("content"), *_calls(message)):
            if text:
                screen.say(safe_lines(text))
        screen.say()
    return 0


def model_call(record: r.Record) -> dict[str, Any] | None:
    """What a model call recorded."""
    if record.kind != r.STEP_DONE:
        return None
    if record.dropped:
        return {} if _MODEL.search(record.key) else None
    said = payload(record)
    result = said.get("result") if isinstance(said, dict) else None
    return result if isinstance(result, dict) and {"turn", "asked", "id"} <= result.keys() else None


def _calls(message: dict[str, Any]) -> list[str]:
    return [f"calls {one['function']['name']}({one['function']['arguments']})" for one in message.get("tool_calls", ())]
