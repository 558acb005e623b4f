"""Tool calls: each call that a model asks for runs once, and always has a result that the model can read.

`Calls` checks a call (`CheckedCall`), asks for approval where its risk needs one (`AllowedCall`), and runs it as a step. Nothing that
a model writes and nothing that a tool does ends the agent: a wrong name, wrong arguments, a denial, a failure and a huge output all
become results.
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

from onward.agent import tracing
from onward.agent.cache import ToolCache
from onward.agent.conversation import Ref, excerpt, result_message
from onward.agent.model import Message, ToolCall
from onward.agent.reader import binary
from onward.agent.tools import READ, Tool
from onward.artifacts.keeper import run_off_loop
from onward.core import mask, secret, wire
from onward.core.asks import MAX_DESCRIPTION_CHARS
from onward.core.journal.turns import is_output
from onward.core.retry import Retry
from onward.core.state import ArtifactRef, StatePatch
from onward.engine.context.approvals import ask_approval
from onward.engine.context.arguments import is_async
from onward.engine.context.call import takes_result
from onward.engine.context.context import Context, save_artifact, take_refs
from onward.engine.context.secrets import has_secret_default
from onward.engine.context.sync_context import SyncContext
from onward.engine.shift.environment import LAST_ANSWER_SHARE
from onward.engine.shift.scope import SCOPE
from onward.errors import ArtifactTooLarge, Denied, InvalidInput, StepFailed, TimeUp, TooDeep, UnknownSecret

NO_CHANGE = StatePatch()
SHOWN_BYTES = 4_000
"""Bytes of an output that a model is shown. A longer output becomes an artifact, and the model is shown both ends of it."""

MIN_SHOWN_BYTES = 1_000
"""The least value of `shown_bytes`: with less there would be little room beside the notes on what was left out."""

MAX_UNDO_BYTES = 64_000
"""Bytes of an output that the record keeps for an undo that takes the result."""


@dataclasses.dataclass(frozen=True, slots=True)
class CallResult:
    """The message with the result of a call, and the change of the state."""

    call: ToolCall
    result: Ref
    patch: StatePatch = NO_CHANGE


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call and the tool that it names, with arguments that fit the tool."""

    call: ToolCall
    tool: Tool
    arguments: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class AllowedCall(CheckedCall):
    """A call that may run, with exactly these arguments. Only `Calls.allow` makes one."""

    note: str = ""
    """A sentence for the model: a person changed the arguments."""
    inherited: bool = False
    """Whether the approval was given to the task that this one is a fork of. It holds only for calls that that task has done."""


@dataclasses.dataclass(frozen=True, slots=True)
class Approvals:
    """The risks that need a person's approval, the seconds that the person has, and the decision after that time."""

    risks: frozenset[str] = frozenset()
    timeout: float | None = None
    default: str = "deny"


Bind = Callable[[dict[str, Any]], tuple[list[Any], dict[str, Any]]]
"""Makes the positional and named arguments of a function from those of a call."""

Record = Callable[[Any], Coroutine[Any, Any, dict[str, Any]]]
"""Makes the record of an output."""


class Calls:
    """Checks and runs the calls of one task."""

    def __init__(
        self,
        ctx: Context,
        tools: Mapping[str, Tool],
        approvals: Approvals,
        write: Callable[[Message], Ref],
        shown_bytes: int = SHOWN_BYTES,
        *,
        brief: bool = False,
        secrets: frozenset[str] = frozenset(),
        undoes: bool = False,
        cache: Callable[[], ToolCache] | None = None,
    ) -> None:
        self._ctx, self._tools, self._approvals, self._write = ctx, tools, approvals, write
        self._shown_bytes = shown_bytes
        self._keeps_brief = brief
        """Whether a result that shows a part of an artifact is also kept in a brief form without that part."""
        self.always_allowed: set[str] = set()
        """Tools that need no approval in this task any more, because a person decided "always"."""
        self.inherited_always: set[str] = set()
        """The same set of the task that this one is a fork of: the calls of that task needed no approval, those of the fork do."""
        self.secrets = secrets
        """The secrets that the model may name."""
        self.undoes = undoes
        """Whether finished calls are undone when the task fails."""
        self._cache = cache
        self.made_secrets: dict[str, list[Any]] = {}
        """Secrets that tools of this task made, each with the tool, its arguments and the step, to make it again."""

    def check(self, call: ToolCall) -> CheckedCall | str:
        """The call with its tool and arguments, or an error for the model."""
        tool = self._tools.get(call.name)
        if tool is None:
            return f"error: there is no tool {call.name!r}; there are {', '.join(sorted(self._tools))}"
        try:
            arguments = tool.arguments(call.arguments)
            secret.check_known(arguments, {*self.secrets, *self.made_secrets})
        except (InvalidInput, UnknownSecret) as error:
            return f"error: {error}"
        return CheckedCall(call, tool, arguments)

    def may_run_at_once(self, allowed: Sequence[AllowedCall | str]) -> bool:
        """Whether these calls may run beside each other: only when all of them read."""
        return all(isinstance(call, str) or call.tool.risk == READ for call in allowed)

    async def run(self, call: ToolCall, allowed: AllowedCall | str) -> CallResult:
        """Run a call and return its result. A string instead of an allowed call is the result itself."""
        if isinstance(allowed, AllowedCall) and self._is_stale(allowed):
            checked = self.check(call)
            allowed = checked if isinstance(checked, str) else await self._ask_approval(checked)
        if isinstance(allowed, str):
            return self._text_result(call, allowed)
        try:
            if allowed.tool.direct:
                return await self._run_direct(allowed)
            recorded = await self._run_step(allowed)
        except StepFailed as failed:
            return self._text_result(call, f"{allowed.note}error: {failed.kind}: {failed.message}")
        if not is_output(recorded):
            return self._text_result(call, f"{allowed.note}{_resolution_text(recorded)}")
        artifacts = tuple(ArtifactRef.model_validate(artifact) for artifact in recorded.get("artifacts", ()))
        patch = StatePatch.model_validate(recorded.get("patch") or {})
        patch = patch.model_copy(update={"add_artifacts": patch.add_artifacts + artifacts})
        result = Ref(recorded["id"], recorded["bytes"], Ref(*recorded["brief"]) if "brief" in recorded else None)
        return CallResult(call, await self._with_note(result, allowed.note) if allowed.note else result, patch)

    # ── approvals ────────────────────────────────────────────────────────────────────────────────────────────────

    def needs_approval(self, tool: Tool) -> bool:
        """Whether a person has to approve a call of this tool."""
        if tool.name in self.always_allowed:
            return False
        if tool.name in self.inherited_always and self._ctx.host.inherits(anywhere=True):
            return False
        return tool.risk in self._approvals.risks if tool.approve is None else tool.approve

    async def allow(self, calls: Sequence[CheckedCall | str]) -> list[AllowedCall | str]:
        """The calls of a turn as they may run, or results for the model instead. Asks for all approvals of the turn at once."""
        to_approve = {
            number: call
            for number, call in enumerate(calls)
            if isinstance(call, CheckedCall) and self.needs_approval(call.tool)
        }
        requests = [self._ask_approval(call) for call in to_approve.values()]
        results = await self._ctx.gather(*requests) if len(requests) > 1 else [await request for request in requests]
        decided = dict(zip(to_approve, results, strict=True))
        return [
            decided[number] if number in decided else _without_approval(call, self.inherited_always)
            for number, call in enumerate(calls)
        ]

    def _is_stale(self, allowed: AllowedCall) -> bool:
        """Whether only the task that this one is a fork of has an approval for the call, and that task has not done the call."""
        return allowed.inherited and allowed.tool.name not in self.always_allowed and not self._ctx.host.inherits()

    async def _ask_approval(self, checked: CheckedCall) -> AllowedCall | str:
        """Ask a person to approve exactly this call: the arguments are part of the request, and a replay compares them."""
        tool, approvals, inherited = checked.tool, self._approvals, self._ctx.host.inherits()
        try:
            decision = await ask_approval(
                self._ctx.host,
                f"{tool.name}({format_arguments(checked.arguments)})",
                risk=tool.risk,
                data={"tool": tool.name, "call": checked.call.id, "arguments": checked.arguments},
                timeout=approvals.timeout if tool.approval_timeout is None else tool.approval_timeout,
                default=tool.approval_default or approvals.default,
                about=about_tool(tool.effect, tool.description),
            )
        except Denied as denied:
            return f"denied: {denied.reason or 'a person said no'}"
        except TimeUp as error:
            return f"error: it was not done, because no person decided in time; {error}"
        if decision.get("always"):
            (self.inherited_always if inherited else self.always_allowed).add(tool.name)
        allowed = _with_changes(checked, decision)
        return dataclasses.replace(allowed, inherited=inherited) if isinstance(allowed, AllowedCall) else allowed

    async def _with_note(self, result: Ref, note: str) -> Ref:
        """A result with a note about its call in front of it."""
        (data,) = await self._ctx.kept(result.id)
        message = wire.decode(data)
        noted = self._write({**message, "content": f"{note}{message['content']}"})
        return dataclasses.replace(noted, brief=result.brief)

    # ── running a call ───────────────────────────────────────────────────────────────────────────────────────────

    async def _run_direct(self, allowed: AllowedCall) -> CallResult:
        """Run a tool that waits, or starts tasks, outside of a step. Its output comes from records, so a replay gives the same."""
        args, kwargs = allowed.tool.takes.by_name(allowed.arguments)
        try:
            output = await allowed.tool.function(self._ctx, *args, **kwargs)
        except (TooDeep, TimeUp) as error:
            return self._text_result(allowed.call, f"{allowed.note}error: {error}")
        patch, text = output if isinstance(output, tuple) else (NO_CHANGE, output)
        return dataclasses.replace(self._text_result(allowed.call, f"{allowed.note}{text}"), patch=patch)

    def _text_result(self, call: ToolCall, text: str) -> CallResult:
        """A result that no step recorded. A replay gives the same call the same text, so no record is needed."""
        return CallResult(call, self._write(result_message(call.id, excerpt(text, self._shown_bytes))))

    async def _run_step(self, allowed: AllowedCall) -> Any:
        """Run the tool in a step. Returns the output as `_record_output` wrote it; or the value that a person gave when resolving
        an effect in doubt."""
        tool, ctx = allowed.tool, self._ctx
        options: dict[str, Any] = {
            "name": tool.name,
            "effect": tool.effect,
            "retry": tool.retry or _RETRIES[tool.effect],
        }
        work = self._tool_step(allowed)
        options["timeout"] = self._limit_time(tool, work)
        if tool.undo is not None:
            options["undo"] = _undo_by_name(tool, self._reveal_secrets(tool.undo, allowed.arguments))
        if tool.reconcile is not None:
            options["reconcile"] = self._reconcile_step(tool, tool.reconcile, allowed)
        recorded = await ctx.step(work, allowed.arguments, **options)
        if tool.makes is not None:
            scope = SCOPE.get()
            self.remember_secrets({tool.makes: [tool.name, allowed.arguments, scope.prefix + scope.last_name]})
        return recorded

    def _limit_time(self, tool: Tool, work: Any) -> float | None:
        """Keep time for the agent's answer, and return the timeout of one attempt. A call that may be repeated is cut off when
        that time begins. A call that must not happen twice, or would have to be undone, is not cut off: it ends with the deadline."""
        left = self._ctx.host.time_left(LAST_ANSWER_SHARE)
        if left == math.inf:
            return tool.timeout
        work.until = self._ctx.host.now() + left
        work.cut = tool.effect != "once" and tool.reconcile is None and not (self.undoes and tool.undo is not None)
        return max(left, 1.0) if tool.timeout is None and work.cut else tool.timeout

    def _tool_step(self, allowed: AllowedCall) -> Callable[[dict[str, Any]], Any]:
        """The function that the step runs. It is async if the tool's function is, or if the call has secrets; otherwise it is plain, and
        gets a thread."""
        tool, call_id = allowed.tool, allowed.call.id
        has_secrets = tool.makes is not None or tool.takes.secrets or _has_secrets(allowed.arguments)
        bind = self._binder(tool)
        record = functools.partial(self._record_output, call_id, tool.name, whole=self._undo_takes_result(tool))
        cache = None if tool.cache is None or self._cache is None or has_secrets else self._cache()

        async def run(arguments: dict[str, Any]) -> dict[str, Any]:
            with tracing.tool_span(tool.name, call_id, arguments) as span:
                if cache is not None:
                    return await self._run_cached(cache, tool, arguments, bind, record, span)
                if has_secrets:
                    output = await self._call_with_secrets(tool, arguments)
                else:
                    args, kwargs = bind(arguments)
                    output = await tool.function(*args, **kwargs)
                tracing.record_output(span, output)
            return await record(tool.observed(output))

        def run_plain(arguments: dict[str, Any]) -> _Deferred:
            args, kwargs = bind(arguments)
            with tracing.tool_span(tool.name, call_id, arguments) as span:
                output = tool.function(*args, **kwargs)
                tracing.record_output(span, output)
            return _Deferred(record, tool.observed(output))

        return run if has_secrets or cache is not None or is_async(tool.function) else run_plain

    async def _run_cached(
        self, cache: ToolCache, tool: Tool, arguments: dict[str, Any], bind: Bind, record: Record, span: Any
    ) -> dict[str, Any]:
        """Take the output of a tool from the cache, or call it and keep its output. The record says which."""
        tenant = self._ctx.host.keyring.tenant
        cached = await cache.get(tool, arguments, tenant)
        if cached is None:
            args, kwargs = bind(arguments)
            if is_async(tool.function):
                output = await tool.function(*args, **kwargs)
            else:
                output = await asyncio.to_thread(tool.function, *args, **kwargs)
            await cache.put(tool, arguments, tenant, tool.dump(output))
        else:
            output = tool.load(cached.output)
        tracing.record_output(span, output)
        recorded = await record(tool.observed(output))
        return recorded if cached is None else {**recorded, "cached": {"in": cache.name, "at": cached.at}}

    def _binder(self, tool: Tool) -> Bind:
        """A function that makes the positional and named arguments of the tool's function, with the context where it wants one."""
        ctx = self._ctx if is_async(tool.function) else SyncContext(self._ctx, asyncio.get_running_loop())

        def bind(arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
            args, kwargs = tool.takes.by_name(arguments)
            return ([ctx, *args] if tool.wants_context else args), kwargs

        return bind

    async def _call_with_secrets(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        """Call the tool with the values of secrets, which are put in right before the call."""
        keyring = self._ctx.host.keyring
        args, kwargs = self._binder(tool)(await keyring.given(arguments))
        function = tool.function if tool.makes is None else keyring.making(tool.function, tool.makes)
        return await keyring.call(function, *args, **kwargs)

    def remember_secrets(self, made: Mapping[str, list[Any]]) -> None:
        """Register secrets that tools of this task made, now or before the last checkpoint."""
        for name, (tool, arguments, key) in made.items():
            if tool in self._tools:
                remake = functools.partial(self._call_with_secrets, self._tools[tool], arguments)
                self._ctx.host.keyring.remember(name, key, remake)
                self.made_secrets[name] = [tool, arguments, key]

    def _reveal_secrets(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Callable[..., Any]:
        """An undo or a reconcile that gets the arguments of its tool with the values of secrets in them."""
        if not _has_secrets(arguments) and not has_secret_default(function):
            return function
        keyring = self._ctx.host.keyring

        @functools.wraps(function)
        async def call(**kwargs: Any) -> Any:
            return await keyring.call(function, **await keyring.given(kwargs))

        return call

    def _reconcile_step(
        self, tool: Tool, reconcile: Callable[..., Any], allowed: AllowedCall
    ) -> Callable[[dict[str, Any]], Any]:
        """The same for `reconcile`, which finds out whether the call happened; None means that it did not."""
        call_id, reconcile = allowed.call.id, self._reveal_secrets(reconcile, allowed.arguments)

        async def record(output: Any) -> Any:
            if output is None:
                return None
            whole = self._undo_takes_result(tool)
            return await self._record_output(call_id, "reconciled", tool.observed(output), whole=whole)

        async def run(arguments: dict[str, Any]) -> Any:
            return await record(await reconcile(**arguments))

        def run_plain(arguments: dict[str, Any]) -> _Deferred:
            return _Deferred(record, reconcile(**arguments))

        return run if is_async(reconcile) else run_plain

    def _undo_takes_result(self, tool: Tool) -> bool:
        """Whether the undo of this tool will take the output of the tool."""
        return self.undoes and tool.undo is not None and takes_result(tool.undo)

    async def _record_output(self, call_id: str, tool: str, output: Any, *, whole: bool) -> dict[str, Any]:
        """An output as the step records it: the name of the result message, and an artifact for a large output. With `whole` the
        record also has the output itself, for an undo; of a large or binary output, the part that the model is shown."""
        patch, output = output if isinstance(output, tuple) and isinstance(output[0], StatePatch) else (None, output)
        data, kind = _encode_output(output)
        large = len(data) > self._shown_bytes or kind == "binary"
        text = await self._leave_artifact(tool, data, kind) if large else data.decode()
        message = wire.encode(result_message(call_id, text))
        recorded: dict[str, Any] = {"id": self._ctx.keep(message), "bytes": len(message)}
        if whole:
            recorded["output"] = wire.decode(data) if kind == "json" and len(data) <= MAX_UNDO_BYTES else text
        if artifacts := take_refs(self._ctx):
            recorded["artifacts"] = [artifact.model_dump(mode="json") for artifact in artifacts]
        if self._keeps_brief and (large or tool == "read_artifact"):
            where = f", kept as {artifacts[-1].artifact_id}" if large and artifacts else " of an artifact"
            short = wire.encode(result_message(call_id, f"({len(data):,} bytes{where}; there is no room to show them)"))
            recorded["brief"] = [self._ctx.keep(short), len(short)]
        return (
            recorded if patch is None else {**recorded, "patch": patch.model_dump(mode="json", exclude_defaults=True)}
        )

    async def _leave_artifact(self, tool: str, data: bytes, kind: str) -> str:
        """Leave an output behind as an artifact; return the text that the model is shown instead."""
        lines = data.count(b"\n") + 1
        summary = f"output of {tool}" if kind == "binary" else f"output of {tool}, {lines:,} lines"
        about = {"type": f"tool_result.{kind}", "summary": summary, "step": tool}
        try:
            ref = await save_artifact(self._ctx, data, about)
        except ArtifactTooLarge as refused:  # the tool has run, and must not be run again for this
            return f"error: {tool} has run, but its output is lost: {type(refused).__name__}: {refused}"
        if kind == "binary":
            return f"({len(data):,} bytes, binary, kept as {ref.artifact_id})"
        return await run_off_loop(len(data), lambda: excerpt(data.decode(), self._shown_bytes, ref.artifact_id))


class _Deferred:
    """Work that a thread leaves for the event loop. A coroutine would warn when nothing awaits the thread any more."""

    def __init__(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        self._function, self._args = function, args

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._function(*self._args).__await__()


_RETRIES = {"read": Retry(attempts=3), "idempotent": Retry(attempts=3), "once": Retry(attempts=1)}
"""The step retries a call that may be repeated. A call that may not be fails once, and the model decides what to do."""


def _encode_output(output: Any) -> tuple[bytes, str]:
    if isinstance(output, bytes | bytearray | memoryview):
        data = mask.data(bytes(output))
        return data, "text" if _is_text(data) else "binary"
    if isinstance(output, str):
        return mask.text(output).encode("utf-8", "backslashreplace"), "text"
    # No limit here: a record holds only a part of a large output, and artifacts have a limit of their own.
    return wire.encode(output, "its output", most=sys.maxsize), "json"


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return not binary(data)


def _resolution_text(value: Any) -> str:
    """The result that a person gave for a call in doubt, for the model."""
    if value is None:
        return "it happened; its result is not known"
    return _encode_output(value)[0].decode("utf-8", "replace")


def _has_secrets(arguments: dict[str, Any]) -> bool:
    return any(secret.names(arguments))


def _undo_by_name(tool: Tool, undo: Callable[..., Any]) -> Callable[..., Any]:
    """An undo for a step, from an undo that takes the tool's own arguments by name."""

    @functools.wraps(undo)
    def undo_call(arguments: dict[str, Any], **result: Any) -> Any:
        recorded: Any = result.get("result")
        if is_output(recorded) and "output" in recorded:
            result = {"result": tool.load(recorded["output"])}
        return undo(**arguments, **result)

    return undo_call


def _without_approval(checked: CheckedCall | str, inherited: set[str]) -> AllowedCall | str:
    """A call that needs no approval, or has one of the task that this one is a fork of."""
    if isinstance(checked, str):
        return checked
    return AllowedCall(checked.call, checked.tool, checked.arguments, inherited=checked.tool.name in inherited)


def _with_changes(checked: CheckedCall, decision: Mapping[str, Any]) -> AllowedCall | str:
    """An approved call with the arguments of the decision. They did not come from the model, so they are checked here too."""
    arguments = decision.get("arguments", checked.arguments)
    if wire.fingerprint(arguments) == wire.fingerprint(checked.arguments):
        return AllowedCall(checked.call, checked.tool, checked.arguments)
    why = f", because: {decision['reason']}" if decision.get("reason") else ""
    note = f"(a person approved this with other arguments, {excerpt(json.dumps(arguments), SHOWN_BYTES)}{why})\n"
    try:
        return AllowedCall(checked.call, checked.tool, checked.tool.check(arguments), note)
    except InvalidInput as error:
        return f"{note}error: nothing was done, they do not fit: {error}"


def about_tool(effect: str, description: str | None) -> dict[str, str]:
    """What an approval says about the tool, for the person who decides."""
    text = mask.cut((description or "").strip(), MAX_DESCRIPTION_CHARS)
    return {"effect": effect, "description": text} if text else {"effect": effect}


def format_arguments(arguments: Mapping[str, Any]) -> str:
    """The arguments of a call in one short line."""
    text = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return text if len(text) <= 200 else f"{mask.cut(text, 197)}…"
