"""Tool calls: what a model asked for, done once, with a result that it can read whatever happens.

A call is checked (`Wanted`), approved where its risk asks for that (`Allowed`), and run as a step. Nothing that a model writes and nothing that a
tool does ends the agent: a wrong name, wrong arguments, a no, a failure and a huge output all become text.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any

from onward.agent import tracing as traced
from onward.agent.conversation import Ref, excerpt, result_message
from onward.agent.model import Message, ToolCall
from onward.agent.reader import binary
from onward.agent.tools import READ, Tool
from onward.artifacts.keeper import beside
from onward.core import mask, secret, wire
from onward.core.retry import Retry
from onward.core.secret import UnknownSecret
from onward.core.state import ArtifactRef, StatePatch
from onward.engine.context.arguments import is_async
from onward.engine.context.artifacts import leave, taken
from onward.engine.context.context import Context
from onward.engine.context.host import takes_result
from onward.engine.context.secrets import by_default
from onward.engine.context.sync_context import PlainContext
from onward.engine.shift.environment import LAST
from onward.engine.shift.scope import SCOPE
from onward.errors import ArtifactTooLarge, Denied, InvalidInput, StepFailed, TimeUp, TooDeep

NOTHING = StatePatch()
SHOWN = 4_000
"""Bytes of an output that a model is shown; what is longer is an artifact, and it sees both ends."""

FOR_UNDO = 64_000
"""Bytes of an output that the record keeps for an undo that asks for it."""

SMALLEST = 1_000
"""The least of that: below it there would be little room beside the notes on what was left out."""


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


@dataclasses.dataclass(frozen=True, slots=True)
class Allowed(Wanted):
    """A call that may run, with exactly these arguments. Only `Calls.allowed` makes one."""

    note: str = ""
    """What the model has to know about that: a person changed the arguments."""
    lent: bool = False
    """Whether the yes was for the task that this one is a fork of. It counts for what that task has done."""


@dataclasses.dataclass(frozen=True, slots=True)
class Approvals:
    """For which risks a person is asked, how long that one has, and what holds after that."""

    risks: frozenset[str] = frozenset()
    timeout: float | None = None
    default: str = "deny"


class Calls:
    """How the calls of one task are done."""

    def __init__(
        self,
        ctx: Context,
        tools: Mapping[str, Tool],
        approvals: Approvals,
        write: Callable[[Message], Ref],
        shown: int = SHOWN,
        *,
        brief: bool = False,
        secrets: frozenset[str] = frozenset(),
        undoes: bool = False,
    ) -> None:
        self._ctx, self._tools, self._approvals, self._write, self._shown = ctx, tools, approvals, write, shown
        self._brief = brief
        """Whether what shows a part of an artifact is also kept without it."""
        self.always: set[str] = set()
        """Tools of which a person said that they need no approval in this task any more."""
        self.lent: set[str] = set()
        """The same of the task that this one is a fork of: its calls of them were not asked for, those of the fork are."""
        self.secrets = secrets
        """The secrets that the model may name."""
        self.undoes = undoes
        """Whether finished calls are undone when the task fails."""
        self.made: dict[str, list[Any]] = {}
        """Those that its tools made, with the tool, the arguments and the step: what it takes to make them again."""

    def check(self, call: ToolCall) -> Wanted | str:
        """The tool and its arguments, or what the model is told instead."""
        tool = self._tools.get(call.name)
        if tool is None:
            return f"error: there is no tool {call.name!r}; there are {', '.join(sorted(self._tools))}"
        try:
            arguments = tool.arguments(call.arguments)
            secret.check_known(arguments, {*self.secrets, *self.made})
        except (InvalidInput, UnknownSecret) as error:
            return f"error: {error}"
        return Wanted(call, tool, arguments)

    def together(self, allowed: Sequence[Allowed | str]) -> bool:
        """Whether they may run at once: where all of them only read."""
        return all(isinstance(one, str) or one.tool.risk == READ for one in allowed)

    async def do(self, call: ToolCall, allowed: Allowed | str) -> Done:
        """The result of a call, whatever it is."""
        if isinstance(allowed, Allowed) and self._is_stale(allowed):
            wanted = self.check(call)
            allowed = wanted if isinstance(wanted, str) else await self._decided(wanted)
        if isinstance(allowed, str):
            return self._said(call, allowed)
        try:
            if allowed.tool.direct:
                return await self._directly(allowed)
            told = await self._run(allowed)
        except StepFailed as failed:
            return self._said(call, f"{allowed.note}error: {failed.kind}: {failed.message}")
        if not (isinstance(told, dict) and {"id", "bytes"} <= told.keys()):
            return self._said(call, f"{allowed.note}{_word(told)}")
        artifacts = tuple(ArtifactRef.model_validate(one) for one in told.get("artifacts", ()))
        patch = StatePatch.model_validate(told.get("patch") or {})
        patch = patch.model_copy(update={"add_artifacts": patch.add_artifacts + artifacts})
        result = Ref(told["id"], told["bytes"], Ref(*told["brief"]) if "brief" in told else None)
        return Done(call, await self._noted(result, allowed.note) if allowed.note else result, patch)

    # ── what a person has to approve ─────────────────────────────────────────────────────────────────────────────

    def asks(self, tool: Tool) -> bool:
        """Whether a person has to approve a call of it."""
        if tool.name in self.always or (tool.name in self.lent and self._ctx.host.inherits(anywhere=True)):
            return False
        return tool.risk in self._approvals.risks if tool.approve is None else tool.approve

    async def allowed(self, wanted: Sequence[Wanted | str]) -> list[Allowed | str]:
        """The calls of a turn as they may run, or what the model is told instead. People are asked for all of them at once."""
        asked = {n: one for n, one in enumerate(wanted) if isinstance(one, Wanted) and self.asks(one.tool)}
        open_ = [self._decided(one) for one in asked.values()]
        decided = await self._ctx.gather(*open_) if len(open_) > 1 else [await one for one in open_]
        said = dict(zip(asked, decided, strict=True))
        return [said[n] if n in said else _free(one, self.lent) for n, one in enumerate(wanted)]

    def _is_stale(self, allowed: Allowed) -> bool:
        """Whether a call of a fork has nobody's yes but that for the task it came from, which has not done it."""
        return allowed.lent and allowed.tool.name not in self.always and not self._ctx.host.inherits()

    async def _decided(self, wanted: Wanted) -> Allowed | str:
        """What a person says to exactly this: the arguments are part of the request, and of what a replay compares."""
        tool, people, lent = wanted.tool, self._approvals, self._ctx.host.inherits()
        try:
            decided = await self._ctx.approve(
                f"{tool.name}({_words(wanted.arguments)})",
                risk=tool.risk,
                data={"tool": tool.name, "call": wanted.call.id, "arguments": wanted.arguments},
                timeout=people.timeout if tool.approval_timeout is None else tool.approval_timeout,
                default=tool.approval_default or people.default,
            )
        except Denied as denied:
            return f"denied: {denied.reason or 'a person said no'}"
        except TimeUp as error:
            return f"error: it was not done, because nobody had decided in time; {error}"
        if decided.get("always"):
            (self.lent if lent else self.always).add(tool.name)
        allowed = _with_changes(wanted, decided)
        return dataclasses.replace(allowed, lent=lent) if isinstance(allowed, Allowed) else allowed

    async def _noted(self, result: Ref, note: str) -> Ref:
        """A result with what the model has to know about its call in front of it."""
        (data,) = await self._ctx.kept(result.id)
        message = wire.decode(data)
        noted = self._write({**message, "content": f"{note}{message['content']}"})
        return dataclasses.replace(noted, brief=result.brief)

    # ── doing it ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _directly(self, wanted: Allowed) -> Done:
        """A tool that waits, or starts tasks. All it says comes from records, so that a replay says the same."""
        args, kwargs = wanted.tool.takes.by_name(wanted.arguments)
        try:
            output = await wanted.tool.function(self._ctx, *args, **kwargs)
        except (TooDeep, TimeUp) as error:
            return self._said(wanted.call, f"{wanted.note}error: {error}")
        patch, text = output if isinstance(output, tuple) else (NOTHING, output)
        return dataclasses.replace(self._said(wanted.call, f"{wanted.note}{text}"), patch=patch)

    def _said(self, call: ToolCall, text: str) -> Done:
        """A result that no tool gave. The same call gets the same words, so nothing has to be recorded for it."""
        return Done(call, self._write(result_message(call.id, excerpt(text, self._shown))))

    async def _run(self, wanted: Allowed) -> Any:
        """What `_kept` told of its output; or, where a person said what became of an effect in doubt, their word."""
        tool, ctx = wanted.tool, self._ctx
        options: dict[str, Any] = {
            "name": tool.name,
            "effect": tool.effect,
            "retry": tool.retry or _PATIENCE[tool.effect],
        }
        work = self._tool_step(wanted)
        options["timeout"] = self._within_time(tool, work)
        if tool.undo is not None:
            options["undo"] = _by_name(self._revealing(tool.undo, wanted.arguments))
        if tool.reconcile is not None:
            options["reconcile"] = self._reconcile_step(tool, tool.reconcile, wanted)
        told = await ctx.step(work, wanted.arguments, **options)
        if tool.makes is not None:
            scope = SCOPE.get()
            self.remember({tool.makes: [tool.name, wanted.arguments, scope.prefix + scope.last]})
        return told

    def _within_time(self, tool: Tool, work: Any) -> float | None:
        """See to it that the agent has time left for its answer, and give the timeout of an attempt. A call that may be repeated
        is cut off for that. One that must not happen twice, or would have to be undone, is not: it ends with the deadline."""
        left = self._ctx.host.time_left(LAST)
        if left == math.inf:
            return tool.timeout
        work.until = self._ctx.host.now() + left
        work.cut = tool.effect != "once" and tool.reconcile is None and not (self.undoes and tool.undo is not None)
        return max(left, 1.0) if tool.timeout is None and work.cut else tool.timeout

    def _tool_step(self, wanted: Allowed) -> Callable[[dict[str, Any]], Any]:
        """The function that the step runs, of the same colour as the tool's, so that a plain one gets a thread."""
        tool, call_id = wanted.tool, wanted.call.id
        if tool.makes is not None or tool.takes.secrets or _has_secrets(wanted.arguments):
            return self._secret_step(wanted)
        plain = PlainContext(self._ctx, asyncio.get_running_loop())

        def bound(arguments: dict[str, Any], ctx: Context | PlainContext) -> tuple[list[Any], dict[str, Any]]:
            args, kwargs = tool.takes.by_name(arguments)
            return ([ctx, *args] if tool.wants_context else args), kwargs

        async def run(arguments: dict[str, Any]) -> dict[str, Any]:
            args, kwargs = bound(arguments, self._ctx)
            with traced.tool(tool.name, call_id, arguments) as called:
                output = await tool.function(*args, **kwargs)
                traced.returned(called, output)
            return await self._kept(call_id, tool.name, tool.observed(output), whole=self._undo_reads(tool))

        def run_plainly(arguments: dict[str, Any]) -> _Later:
            args, kwargs = bound(arguments, plain)
            with traced.tool(tool.name, call_id, arguments) as called:
                output = tool.function(*args, **kwargs)
                traced.returned(called, output)
            return _Later(self._kept, call_id, tool.name, tool.observed(output), self._undo_reads(tool))

        return run if is_async(tool.function) else run_plainly

    def _secret_step(self, wanted: Allowed) -> Callable[[dict[str, Any]], Any]:
        """The same with secrets, which are put in right before the call."""
        tool, call_id = wanted.tool, wanted.call.id

        async def run(arguments: dict[str, Any]) -> dict[str, Any]:
            with traced.tool(tool.name, call_id, arguments) as called:
                output = await self._with_secrets(tool, arguments)
                traced.returned(called, output)
            return await self._kept(call_id, tool.name, tool.observed(output), whole=self._undo_reads(tool))

        return run

    async def _with_secrets(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        keyring, function = self._ctx.host.keyring, tool.function
        args, kwargs = tool.takes.by_name(await keyring.given(arguments))
        if tool.wants_context:
            plain = not is_async(function)
            args = [PlainContext(self._ctx, asyncio.get_running_loop()) if plain else self._ctx, *args]
        if tool.makes is not None:
            function = keyring.making(function, tool.makes)
        return await keyring.call(function, *args, **kwargs)

    def remember(self, made: Mapping[str, list[Any]]) -> None:
        """Tools of this task made these secrets, now or before the last checkpoint."""
        for name, (tool, arguments, key) in made.items():
            if tool in self._tools:
                again = functools.partial(self._with_secrets, self._tools[tool], arguments)
                self._ctx.host.keyring.remember(name, key, again)
                self.made[name] = [tool, arguments, key]

    def _revealing(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Callable[..., Any]:
        """An undo or a reconcile that is called with the arguments of its tool, and with the secrets in them."""
        if not _has_secrets(arguments) and not by_default(function):
            return function
        keyring = self._ctx.host.keyring

        @functools.wraps(function)
        async def call(**kwargs: Any) -> Any:
            return await keyring.call(function, **await keyring.given(kwargs))

        return call

    def _reconcile_step(
        self, tool: Tool, reconcile: Callable[..., Any], wanted: Allowed
    ) -> Callable[[dict[str, Any]], Any]:
        """The same for the function that asks whether it happened; None means that it did not."""
        call_id, reconcile = wanted.call.id, self._revealing(reconcile, wanted.arguments)

        async def told(found: Any) -> Any:
            whole = self._undo_reads(tool)
            return None if found is None else await self._kept(call_id, "reconciled", tool.observed(found), whole)

        async def ask(arguments: dict[str, Any]) -> Any:
            return await told(await reconcile(**arguments))

        def ask_plainly(arguments: dict[str, Any]) -> _Later:
            return _Later(told, reconcile(**arguments))

        return ask if is_async(reconcile) else ask_plainly

    def _undo_reads(self, tool: Tool) -> bool:
        """Whether the undo of this tool will ask for what the tool returned."""
        return self.undoes and tool.undo is not None and takes_result(tool.undo)

    async def _kept(self, call_id: str, tool: str, output: Any, whole: bool = False) -> dict[str, Any]:
        """An output as the record has it: the message by its name, and what is too large as an artifact. With `whole` the record
        has the output itself as well, for an undo; of a large or binary one, what the model is shown."""
        patch, output = output if isinstance(output, tuple) and isinstance(output[0], StatePatch) else (None, output)
        data, kind = _bytes(output)
        large = len(data) > self._shown or kind == "binary"
        text = await self._left(tool, data, kind) if large else data.decode()
        message = wire.encode(result_message(call_id, text))
        told: dict[str, Any] = {"id": self._ctx.keep(message), "bytes": len(message)}
        if whole:
            told["output"] = wire.decode(data) if kind == "json" and len(data) <= FOR_UNDO else text
        if artifacts := taken(self._ctx):
            told["artifacts"] = [one.model_dump(mode="json") for one in artifacts]
        if self._brief and (large or tool == "read_artifact"):
            where = f", kept as {artifacts[-1].artifact_id}" if large and artifacts else " of an artifact"
            short = wire.encode(result_message(call_id, f"({len(data):,} bytes{where}; there is no room to show them)"))
            told["brief"] = [self._ctx.keep(short), len(short)]
        return told if patch is None else {**told, "patch": patch.model_dump(mode="json", exclude_defaults=True)}

    async def _left(self, tool: str, data: bytes, kind: str) -> str:
        """Leave an output behind as an artifact; what the model is told instead."""
        lines = data.count(b"\n") + 1
        summary = f"output of {tool}" if kind == "binary" else f"output of {tool}, {lines:,} lines"
        about = {"type": f"tool_result.{kind}", "summary": summary, "step": tool}
        try:
            ref = await leave(self._ctx, data, about)
        except ArtifactTooLarge as refused:  # the tool has run, and must not be run again for this
            return f"error: {tool} has run, but its output is lost: {type(refused).__name__}: {refused}"
        if kind == "binary":
            return f"({len(data):,} bytes, binary, kept as {ref.artifact_id})"
        return await beside(len(data), lambda: excerpt(data.decode(), self._shown, ref.artifact_id))


class _Later:
    """What a thread leaves for the loop to do. A coroutine would complain when nobody waits for the thread any more."""

    def __init__(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        self._function, self._args = function, args

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._function(*self._args).__await__()


_PATIENCE = {"read": Retry(attempts=3), "idempotent": Retry(attempts=3), "once": Retry(attempts=1)}
"""A call that may be repeated is; one that may not fails once, and the model decides what then."""


def _bytes(output: Any) -> tuple[bytes, str]:
    if isinstance(output, bytes | bytearray | memoryview):
        data = mask.data(bytes(output))
        return data, "text" if _readable(data) else "binary"
    if isinstance(output, str):
        return mask.text(output).encode("utf-8", "backslashreplace"), "text"
    return wire.encode(
        output, "its output", most=sys.maxsize
    ), "json"  # a record holds less of it, an artifact has its own limit


def _readable(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return not binary(data)


def _word(value: Any) -> str:
    """What a person told, as a model reads it."""
    return (
        "it happened; nobody knows with what result" if value is None else _bytes(value)[0].decode("utf-8", "replace")
    )


def _has_secrets(arguments: dict[str, Any]) -> bool:
    return any(secret.names(arguments))


def _by_name(undo: Callable[..., Any]) -> Callable[..., Any]:
    """An undo that a tool's author wrote for the tool's own arguments."""

    @functools.wraps(undo)
    def take_back(arguments: dict[str, Any], **result: Any) -> Any:
        kept = result.get("result")
        if isinstance(kept, dict) and {"id", "bytes", "output"} <= kept.keys():
            result = {"result": kept["output"]}
        return undo(**arguments, **result)

    return take_back


def _free(wanted: Wanted | str, lent: set[str]) -> Allowed | str:
    """A call that needs nobody's yes, or has that of the task which this one is a fork of."""
    if isinstance(wanted, str):
        return wanted
    return Allowed(wanted.call, wanted.tool, wanted.arguments, lent=wanted.tool.name in lent)


def _with_changes(wanted: Wanted, decided: Mapping[str, Any]) -> Allowed | str:
    """An approved call, with the arguments that the decision names. They came past the model, so they are checked here too."""
    given = decided.get("arguments", wanted.arguments)
    if wire.fingerprint(given) == wire.fingerprint(wanted.arguments):
        return Allowed(wanted.call, wanted.tool, wanted.arguments)
    why = f", because: {decided['reason']}" if decided.get("reason") else ""
    note = f"(a person approved this with other arguments, {excerpt(json.dumps(given), SHOWN)}{why})\n"
    try:
        return Allowed(wanted.call, wanted.tool, wanted.tool.check(given), note)
    except InvalidInput as error:
        return f"{note}error: nothing was done, they do not fit: {error}"


def _words(arguments: Mapping[str, Any]) -> str:
    said = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return said if len(said) <= 200 else f"{said[:197]}…"
