"""A scripted model, for tests and demonstrations: it says what its script says, whoever asks.

Each answer is a text, a list of calls, a Reply, an exception, or a function of the request that gives one of these. It finds
its place in the script from the conversation itself (the turns it has already answered), so that it says the same again when
it is asked the same, from any process.
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
    """Answers from a script."""

    def __init__(self, script: Script, name: str = "scripted") -> None:
        self.name, self._script = name, script
        self.asked: list[Request] = []
        """All requests, as they came."""

    async def ask(self, request: Request, emit: Emit) -> Reply:
        """The next line of the script."""
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
