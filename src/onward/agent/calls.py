"""Tool calls: what a model asked for, done once, with a result that it can read whatever happens.

A call is checked, approved where its risk asks for that, and run as a step. Nothing that a model writes and nothing that a
tool does ends the agent: a wrong name, wrong arguments, a no, a failure and a huge output all become text.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from onward.agent.conversation import Ref, excerpt, result_message
from onward.agent.model import Message, ToolCall
from onward.agent.tools import READ, Tool
from onward.core import wire
from onward.core.retry import Retry
from onward.core.state import ArtifactRef, StatePatch
from onward.engine.arguments import is_async
from onward.engine.context import Context
from onward.errors import Denied, InvalidInput, StepFailed

NOTHING = StatePatch()
SHOWN = 4_000
"""Bytes of an output that a model is shown; what is longer is an artifact, and it sees both ends."""


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """What a call came to: the message with its result, and how the state changes."""

    call: ToolCall
    result: Ref
    patch: StatePatch = NOTHING


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """A call and the tool that it names, with arguments that fit."""

    call: ToolCall
    tool: Tool
    arguments: dict[str, Any]


class Calls:
    """How the calls of one task are done."""

    def __init__(
        self, ctx: Context, tools: Mapping[str, Tool], approve: frozenset[str], write: Callable[[Message], Ref]
    ) -> None:
        self._ctx, self._tools, self._approve, self._write = ctx, tools, approve, write

    def check(self, call: ToolCall) -> Wanted | str:
        """The tool and its arguments, or what is wrong with them."""
        tool = self._tools.get(call.name)
        if tool is None:
            return f"there is no tool {call.name!r}; there are {', '.join(sorted(self._tools))}"
        try:
            return Wanted(call, tool, tool.arguments(call.arguments))
        except InvalidInput as error:
            return str(error)

    def together(self, wanted: list[Wanted | str]) -> bool:
        """Whether they may run at once: where all of them only read, and nobody has to be asked."""
        return all(isinstance(one, str) or (one.tool.risk == READ and not self._asks(one.tool)) for one in wanted)

    def _asks(self, tool: Tool) -> bool:
        return tool.risk in self._approve if tool.approve is None else tool.approve

    async def do(self, call: ToolCall, wanted: Wanted | str) -> Done:
        """The result of a call, whatever it is."""
        if isinstance(wanted, str):
            return self._said(call, f"error: {wanted}")
        try:
            if self._asks(wanted.tool):
                await self._approved(wanted)
            told = await self._run(wanted)
        except Denied as denied:
            return self._said(call, f"denied: {denied.reason or 'a person said no'}")
        except StepFailed as failed:
            return self._said(call, f"error: {failed.kind}: {failed.message}")
        if not (isinstance(told, dict) and {"id", "bytes"} <= told.keys()):
            return self._said(call, _word(told))
        artifact = () if told["artifact"] is None else (ArtifactRef.model_validate(told["artifact"]),)
        patch = StatePatch.model_validate(told.get("patch") or {})
        patch = patch.model_copy(update={"add_artifacts": patch.add_artifacts + artifact})
        return Done(call, Ref(told["id"], told["bytes"]), patch)

    def _said(self, call: ToolCall, text: str) -> Done:
        """A result that no tool gave. The same call gets the same words, so nothing has to be recorded for it."""
        return Done(call, self._write(result_message(call.id, excerpt(text, SHOWN))))

    async def _approved(self, wanted: Wanted) -> None:
        """A person's yes to exactly this: the arguments are part of the request, and of what a replay compares."""
        data = {"tool": wanted.tool.name, "arguments": wanted.arguments, "hash": wire.fingerprint(wanted.arguments)}
        await self._ctx.approve(f"{wanted.tool.name}({_words(wanted.arguments)})", risk=wanted.tool.risk, data=data)

    async def _run(self, wanted: Wanted) -> Any:
        """What `_kept` told of its output; or, where a person said what became of an effect in doubt, their word."""
        tool, ctx = wanted.tool, self._ctx
        options: dict[str, Any] = {
            "name": tool.name,
            "effect": tool.effect,
            "retry": tool.retry or _PATIENCE[tool.effect],
        }
        if tool.timeout is not None:
            options["timeout"] = tool.timeout
        if tool.undo is not None:
            options["undo"] = _by_name(tool.undo)
        if tool.reconcile is not None:
            options["reconcile"] = self._reconcile_step(tool.reconcile, wanted.call.id)
        return await ctx.step(self._tool_step(wanted), wanted.arguments, **options)

    def _tool_step(self, wanted: Wanted) -> Callable[[dict[str, Any]], Any]:
        """The function that the step runs, of the same colour as the tool's, so that a plain one gets a thread."""
        tool, call_id = wanted.tool, wanted.call.id

        def bound(arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
            args, kwargs = tool.takes.by_name(arguments)
            return ([self._ctx, *args] if tool.wants_context else args), kwargs

        async def run(arguments: dict[str, Any]) -> dict[str, Any]:
            args, kwargs = bound(arguments)
            return self._kept(call_id, tool.name, await tool.function(*args, **kwargs))

        def run_plainly(arguments: dict[str, Any]) -> dict[str, Any]:
            args, kwargs = bound(arguments)
            return self._kept(call_id, tool.name, tool.function(*args, **kwargs))

        return run if is_async(tool.function) else run_plainly

    def _reconcile_step(self, reconcile: Callable[..., Any], call_id: str) -> Callable[[dict[str, Any]], Any]:
        """The same for the function that asks whether it happened; None means that it did not."""

        def told(found: Any) -> Any:
            return None if found is None else self._kept(call_id, "reconciled", found)

        async def ask(arguments: dict[str, Any]) -> Any:
            return told(await reconcile(**arguments))

        def ask_plainly(arguments: dict[str, Any]) -> Any:
            return told(reconcile(**arguments))

        return ask if is_async(reconcile) else ask_plainly

    def _kept(self, call_id: str, tool: str, output: Any) -> dict[str, Any]:
        """An output as the record has it: the message by its name, and what is too large as an artifact."""
        patch, output = output if isinstance(output, tuple) and isinstance(output[0], StatePatch) else (None, output)
        data, kind = _bytes(output)
        artifact = None
        text = data.decode("utf-8", "replace")
        if len(data) > SHOWN or kind == "binary":
            name = self._ctx.keep(data)
            summary = (
                f"output of {tool}, {text.count(chr(10)) + 1:,} lines" if kind != "binary" else f"output of {tool}"
            )
            artifact = {
                "artifact_id": name,
                "type": f"tool_result.{kind}",
                "summary": summary,
                "bytes": len(data),
                "step": tool,
            }
            text = f"({len(data):,} bytes, binary, kept as {name})" if kind == "binary" else excerpt(text, SHOWN, name)
        message = wire.encode(result_message(call_id, text))
        told = {"id": self._ctx.keep(message), "bytes": len(message), "artifact": artifact}
        return told if patch is None else {**told, "patch": patch.model_dump(mode="json", exclude_defaults=True)}


_PATIENCE = {"read": Retry(attempts=3), "idempotent": Retry(attempts=3), "once": Retry(attempts=1)}
"""A call that may be repeated is; one that may not fails once, and the model decides what then."""


def _bytes(output: Any) -> tuple[bytes, str]:
    if isinstance(output, bytes | bytearray):
        return bytes(output), "binary"
    if isinstance(output, str):
        return output.encode("utf-8", "backslashreplace"), "text"
    return wire.encode(output, "its output"), "json"


def _word(value: Any) -> str:
    """What a person told, as a model reads it."""
    return (
        "it happened; nobody knows with what result" if value is None else _bytes(value)[0].decode("utf-8", "replace")
    )


def _by_name(undo: Callable[..., Any]) -> Callable[..., Any]:
    """An undo that a tool's author wrote for the tool's own arguments."""

    @functools.wraps(undo)
    def take_back(arguments: dict[str, Any], **result: Any) -> Any:
        return undo(**arguments, **result)

    return take_back


def _words(arguments: Mapping[str, Any]) -> str:
    said = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return said if len(said) <= 200 else f"{said[:197]}…"
