"""A scripted model, for tests and demonstrations: it replies with the lines of a script.

A line is a string, a list of calls, a Reply, an exception, or a function of the request that returns one of these. The model finds its
place in the script from the conversation itself (the turns that it has already answered), so that the same request gets the same
reply, in any process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from onward.agent.model import Emit, Reply, Request, ToolCall, Usage
from onward.errors import UsageError

Call = tuple[str, dict[str, Any]]
"""The name of a tool and its arguments."""

Line = str | Sequence[Call] | Reply | BaseException
Script = Sequence["Line | Callable[[Request], Line]"]


class ScriptedModel:
    """A model that replies with the lines of a script."""

    def __init__(self, script: Script, name: str = "scripted") -> None:
        self.name: str = name
        self._script = script
        self.asked: list[Request] = []
        """All requests, in the order of the calls."""

    async def ask(self, request: Request, emit: Emit) -> Reply:
        """Reply with the next line of the script."""
        self.asked.append(request)
        turn = sum(message["role"] == "assistant" for message in request.messages)
        if turn >= len(self._script):
            raise UsageError(f"the script has {len(self._script)} answers, and the model was asked for one more")
        line = self._script[turn]
        if callable(line) and not isinstance(line, Reply):
            line = line(request)
        if isinstance(line, BaseException):
            raise line
        reply = line if isinstance(line, Reply) else _reply(line, turn, request)
        for word in reply.text.split(" "):
            emit(f"{word} ")
        return reply


def _reply(line: str | Sequence[Call], turn: int, request: Request) -> Reply:
    size = sum(len(json.dumps(message, default=str)) for message in request.messages)
    if isinstance(line, str):
        return Reply(line, usage=Usage(size // 4, len(line) // 4 + 1))
    calls = tuple(
        ToolCall(f"call_{turn}_{number}", name, json.dumps(arguments)) for number, (name, arguments) in enumerate(line)
    )
    return Reply("", calls, Usage(size // 4, 10 * len(calls)), finish="tool_calls")
