"""A turn of an agent: exactly what its model saw, and what it said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.cli.screen import Screen
from onward.cli.text import safe, safe_lines
from onward.core import record as r
from onward.core.task import Task
from onward.core.turn import asked_in, named_in, none_such, spoken
from onward.core.turn import model_call as model_call
from onward.errors import UsageError
from onward.service import Service


async def show(screen: Screen, service: Service, task: Task, records: Sequence[r.Record], number: int) -> int:
    """`onward show ID --turn N`."""
    asked = asked_in(records)
    if number not in asked:
        raise UsageError(none_such(task.task_id, records, number))
    _, turn = asked[number]
    messages = spoken(turn, await service.contents(task.task_id, named_in(turn)))
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


def _calls(message: dict[str, Any]) -> list[str]:
    return [f"calls {one['function']['name']}({one['function']['arguments']})" for one in message.get("tool_calls", ())]
