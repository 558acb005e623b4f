"""The context: the interface of the engine for handlers.

It names steps and checks options. All work is done by the small `Host` beneath it (run a step, wait, write a record, start a
child, now), so that another engine can host the same handlers.
"""

from __future__ import annotations

import functools
import inspect
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, TypeVarTuple, Unpack, overload

from onward.artifacts.keeper import MAX_ARTIFACT_BYTES
from onward.core import record as r
from onward.core import secret, wire
from onward.core.durations import Duration, seconds
from onward.core.retry import Retry, as_retry
from onward.core.schedule import tick_of
from onward.engine.context.approvals import ask_approval
from onward.engine.context.call import Call, mark_of
from onward.engine.context.child import Child
from onward.engine.context.host import Host
from onward.engine.context.options import (
    check_arguments,
    check_branches,
    check_child_options,
    check_counterpart,
    check_effect,
    check_function,
    check_step_options,
    function_name,
    refuse_handler,
    refuse_shadowed,
    refuse_value,
)
from onward.engine.context.secrets import make_secret, resolve_secrets
from onward.engine.context.signatures import ChildOptions, StepOptions, TransactionOptions
from onward.engine.context.unawaited import Unawaited, notices_unawaited
from onward.engine.shift.scope import SCOPE
from onward.errors import ArtifactTooLarge, UsageError, WaitTimeout

if TYPE_CHECKING:
    from onward.core.budget import Budget
    from onward.core.state import AgentState, ArtifactRef, StatePatch
    from onward.engine.shift.locks import HeldLock
    from onward.engine.shift.spending import Spending

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
InputT = TypeVar("InputT")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
_EMPTY: Mapping[str, Any] = {}
_STEP_OPTIONS = StepOptions.__optional_keys__ | {"makes"}
RAISE: Any = object()
"""The default of a wait without one: the wait raises when its time is up."""


CURRENT: ContextVar[Context | None] = ContextVar("onward_context", default=None)
"""The context of the handler that runs now."""


def current() -> Context:
    """The context of the task that runs now, for code that does not get it as an argument, such as a tool of an agent framework. Raises
    UsageError outside of a task, and in a handler that is a plain function."""
    context = CURRENT.get()
    if context is None:
        raise UsageError(
            "no task runs here: onward.current() is for code that an async handler (`@app.task`) calls; "
            "a handler that is a plain function passes its ctx on"
        )
    return context


@notices_unawaited
class Context:
    """The first argument of every handler."""

    _saved_refs: Mapping[str, list[ArtifactRef]] = _EMPTY
    _model_steps: Any = None
    """The model requests of agents of other frameworks (`onward.integrations`)."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._run = host.run
        self._unawaited = Unawaited()
        self._state: AgentState | None = None

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return self._host.task_id

    @property
    def host(self) -> Host:
        """The engine beneath, for libraries that build on a context."""
        return self._host

    @property
    def attempt(self) -> int:
        """1 at first, one more after each failure of the task. Crashes, sleeps and waits do not count."""
        return self._host.attempt

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the task, the same in every replay. The task of a schedule also has `schedule` and `tick`."""
        return dict(self._host.labels)

    @property
    def tick(self) -> float | None:
        """The tick (seconds since 1970) for which a schedule submitted this task, however late it runs; None for all other tasks."""
        return tick_of(self._host.labels)

    @property
    def replaying(self) -> bool:
        """Whether the journal still has records that the handler has not come to: the next steps return recorded results. For code
        with side effects on watchers, such as a log or a stream, which an earlier shift had already."""
        return self._host.replaying

    @property
    def key(self) -> str:
        """The effect key of the running step: the same in every attempt of this step and different from that of every other, so that
        an outside service can recognise a call that it has seen before."""
        running = SCOPE.get().key
        if running is None:
            raise UsageError("ctx.key names the effect of a running step: use it inside the function given to ctx.step")
        return f"{self._host.effects_of}:{running}"

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    # The overloads return Coroutine[object, None, T]: mypy finds a call of ctx.gather ambiguous when an argument has Any in its type.
    @overload
    def step(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        makes: str,
        name: str | None = None,
        retry: Retry | int | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]: ...
    @overload
    def step(
        self, function: Callable[[*Ts], Awaitable[T]], /, *args: *Ts, **options: Unpack[StepOptions]
    ) -> Coroutine[object, None, T]: ...
    @overload
    def step(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[object, None, T]: ...
    @overload
    def step(
        self, function: Callable[[*Ts], T], /, *args: *Ts, **options: Unpack[StepOptions]
    ) -> Coroutine[object, None, T]: ...
    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, T]: ...
    def step(  # type: ignore[misc]  # mypy compares the options with P.kwargs
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        retry: Retry | int | None = None,
        timeout: Duration | None = None,
        undo: Callable[..., Any] | None = None,
        effect: str | None = None,
        reconcile: Callable[..., Any] | None = None,
        makes: str | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Run the function and record its result; after a crash, return the recorded result and do not run it again.

        Until its result is recorded the function may run again after a crash: give `ctx.key` to the outside service, so that it
        recognises the second call. Where that is not enough: `effect="once"` is announced before it starts and never repeated
        unless a person says that it did not happen; `reconcile` (called with the same arguments; None means that it did not
        happen, any other value is its result) is called before a repetition. `undo` (called with the same arguments, and with
        `result` where it has a parameter of that name) undoes the step when the saga around it fails.

        `retry` (a Retry, or a number of attempts) is for failures of this step alone; a task's own retry comes back
        to the failed step as well. `timeout` is for one attempt. Plain functions run in a thread.

        The engine inserts the value of a secret (`app.secret`) among the arguments right before the call, and never records it.
        `makes` names a secret that the function returns: the step returns a `Secret` for other steps, and makes it again after a crash.

        Type checkers know the arguments and the result. With options, they take the function's arguments by position only. A
        parameter that is named like an option gets its value by position, or with `functools.partial(function, name=…)`.
        The result is JSON, or the type that the function's annotation names where JSON has no such value: a dataclass or a pydantic
        model, a list, a dict or a tuple of them, a date. It is the same now and after a crash.
        """
        check_function("step", function, self._host.task_name, args)
        if (name or retry or timeout or undo or effect or reconcile or makes) is not None:
            options = {"name": name, "retry": retry, "timeout": timeout, "undo": undo, "effect": effect}
            options |= {"reconcile": reconcile, "makes": makes}
            check_step_options(options)
            refuse_shadowed("step", options, function, args, kwargs)
        if kwargs:
            check_arguments("step", function, kwargs, _STEP_OPTIONS)
        call = Call(name or function_name(function), function, args, kwargs)
        if retry is not None:
            call.retry = as_retry(retry)
        if timeout is not None:
            call.timeout = seconds(timeout, "timeout")
        if args or kwargs:
            call.mark = mark_of(args, kwargs)
        if undo is not None:
            check_counterpart("undo", undo, call.name, args, kwargs)
            call.undo = undo
        if reconcile is not None:
            check_counterpart("reconcile", reconcile, call.name, args, kwargs)
        if effect is not None or reconcile is not None:
            call.effect, call.reconcile = check_effect(effect), reconcile
        if makes is not None:
            return self._unawaited.add(make_secret(self._host.keyring, call, makes, self._host.run), "step", call.name)
        if secret.used:
            resolve_secrets(self._host.keyring, call)
        return self._unawaited.add(self._run(call), "step", call.name)

    def branch(self, name: str) -> AbstractAsyncContextManager[None, None]:
        """`async with ctx.branch(call_id):` The block runs beside other such blocks, in asyncio tasks that you or a framework start. Its
        steps belong to its name, and not to the order in which the tasks begin, so the name must come from the data: the id of a tool
        call. A name that comes again is a new branch. While branches are open, the line around them begins no step of its own. `ctx.gather`
        is simpler where you start the work yourself."""
        block: AbstractAsyncContextManager[None, None] = self._host.branch(name)
        return block

    def saga(self, name: str = "saga") -> AbstractAsyncContextManager[Any, None]:
        """`async with ctx.saga():` When the block fails, is cancelled or runs out of time, its finished steps with an `undo`
        are undone, the last first. Sagas can be nested."""
        block: AbstractAsyncContextManager[Any, None] = self._host.saga(name)
        return block

    def lock(self, name: str, *, timeout: Duration | None = None) -> AbstractAsyncContextManager[HeldLock, None]:
        """`async with ctx.lock("deploy:web") as lock:` One task at a time is in the block. Waiting for the lock frees the slot, and lasts
        at most `timeout`: then it raises LockTimeout, which names the holder.

        A worker that was wrongly taken for dead may still run a step of the block while its successor is in it. So give `lock.token` to
        each step that writes, and let the resource refuse a token that is smaller than one that it has seen. After a crash the
        block has a new token."""
        block: AbstractAsyncContextManager[HeldLock, None] = self._host.lock(name, _timeout(timeout))
        return block

    @overload
    def transaction(
        self, function: None = None, /, *, name: str | None = None
    ) -> AbstractAsyncContextManager[Any, None]: ...
    @overload
    def transaction(
        self, function: Callable[[Any, *Ts], Awaitable[T]], /, *args: *Ts, **options: Unpack[TransactionOptions]
    ) -> Coroutine[object, None, T]: ...
    @overload
    def transaction(
        self, function: Callable[Concatenate[Any, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[object, None, T]: ...
    def transaction(  # type: ignore[misc]  # as for step
        self,
        function: Callable[..., Any] | None = None,
        /,
        *args: Any,
        name: str | None = None,
        retry: Retry | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Commit your writes and the record of the step together: exactly once.

        `await ctx.transaction(function, …)` calls the async function with a connection of the store's own database and the
        arguments, and records its result. `async with ctx.transaction() as connection:` does the same for a block; after a crash
        the block's statements are not sent again but answered from the record. `retry` (a Retry, or a number of attempts) calls
        the function again in a new transaction when it fails; a block cannot be run again, so it takes no `retry`.
        """
        if function is None:
            if retry is not None:
                raise UsageError(
                    "a block cannot be run again: `ctx.transaction(retry=…)` takes a function, `await ctx.transaction(function, …, retry=3)`"
                )
            return self._host.transaction(Call(name or "transaction", _no_function))
        check_function("transaction", function, self._host.task_name)
        if kwargs:
            check_arguments("transaction", function, kwargs, TransactionOptions.__optional_keys__)
        if name is not None or retry is not None:
            refuse_shadowed("transaction", {"name": name, "retry": retry}, function, (None, *args), kwargs)
        call = Call(name or function_name(function), function, args, kwargs)
        if retry is not None:
            call.retry = as_retry(retry)
        if args or kwargs:
            call.mark = mark_of(args, kwargs)
        if secret.used:
            resolve_secrets(self._host.keyring, call)
        return self._unawaited.add(self._host.transaction(call).run(), "transaction", call.name)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def sleep(self, duration: Duration, *, name: str = "sleep") -> None:
        """Wait across restarts, until `duration` after this line was first reached. A sleep of more than a second uses no slot."""
        await self._host.wait(r.SLEEP, name, {"for": seconds(duration, "sleep")}, seconds(duration, "sleep"))

    async def signal(self, name: str, *, timeout: Duration | None = None, default: Any = RAISE) -> Any:
        """Wait for the next signal of that name (`app.signal(id, name, value)`) and return its value. A signal that came earlier counts."""
        message = await self._host.wait(r.SIGNAL, f"signal {name}", {"signal": name}, _timeout(timeout))
        return message["value"] if message is not None else _default(default, f"no signal {name!r} came in time")

    async def messages(self, *, last: bool = False) -> list[Any]:
        """The messages to this task (`app.message`) since the last call, in order. Does not wait. An agent reads them before
        every turn.

        With `last` the task cannot complete with an unread message: when one comes before the result is written, the engine does
        not write the result, and the handler begins again as after a crash.
        """
        return await self._host.messages(last=last)

    async def ask(
        self, question: str, *, choices: Iterable[str] = (), timeout: Duration | None = None, default: Any = RAISE
    ) -> Any:
        """Ask a person, and return the answer (`app.answer`, `onward answer`)."""
        data = {"question": str(question), "choices": list(choices)} if choices else {"question": str(question)}
        message = await self._host.wait(r.QUESTION, "question", data, _timeout(timeout))
        return message["value"] if message is not None else _default(default, f"no answer came in time: {question}")

    async def approve(
        self,
        what: str,
        *,
        risk: str | None = None,
        data: Any = None,
        timeout: Duration | None = None,
        default: str = "deny",
    ) -> dict[str, Any]:
        """Go on only when a person approves (`app.decide`, `onward approve`); raises Denied, with the reason, otherwise. Without
        a decision in time, `default` decides."""
        return await ask_approval(self._host, what, risk=risk, data=data, timeout=timeout, default=default)

    # ── contents and state ───────────────────────────────────────────────────────────────────────────────────────

    def keep(self, data: bytes | str) -> str:
        """Keep bytes or a string outside the journal, and return its name, for a step's result. Equal contents are stored once. They
        are durable with the next record, which may refer to them."""
        return self._host.keep(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)

    async def kept(self, *names: str) -> list[bytes]:
        """The contents that `keep` stored under these names."""
        contents = await self._host.contents(list(dict.fromkeys(names)))
        if missing := [name for name in names if name not in contents]:
            raise UsageError(f"this task keeps nothing under {', '.join(map(repr, missing))}")
        return [contents[name] for name in names]

    async def artifact(self, data: bytes | str, *, type: str = "text", summary: str = "") -> ArtifactRef:  # noqa: A002
        """Save bytes or a string as an artifact (`app.artifacts`, `onward artifacts`), durable before the record that names it. In
        the handler itself this is a step, and the state, where there is one, gets the ref. In a step it is part of the step."""
        return await save_artifact(self, data, {"type": type, "summary": summary})

    async def read_artifact(self, artifact: ArtifactRef | str) -> bytes:
        """The bytes of an artifact of this task, by its ref or its id. Raises ArtifactNotFound."""
        return await self._host.read_artifact(artifact if isinstance(artifact, str) else artifact.artifact_id)

    async def checkpoint(self, value: Any) -> None:
        """Make this the place from which the task goes on: after a crash the handler begins again with this value as `ctx.restored`,
        and earlier records are not replayed. So the code after a checkpoint must do the same as code that begins with it, as in a
        loop over the remaining items. Only where nothing is open: no step, saga, branch or child."""
        await self._host.checkpoint(wire.decode(wire.encode(value, "the checkpoint")))

    async def flush(self) -> None:
        """Wait until all records of this task are durable; results of reads may be written later (`checkpoint=` of the handler)."""
        await self._host.flush()

    @property
    def restored(self) -> Any:
        """The value of the last checkpoint; None at the beginning."""
        return self._host.restored

    @property
    def state(self) -> AgentState | None:
        """The state of this task, where it has one."""
        return self._state

    async def patch(self, change: StatePatch | AgentState | None = None) -> AgentState:
        """Change the state of this task, with the next commit, and return the new state. A whole state starts it. Patches from
        `app.patch` are applied first; without a change, only those."""
        from onward.core.state import AgentState, StatePatch  # noqa: PLC0415 -- pydantic, which most tasks do not need

        if not isinstance(change, AgentState):
            await self._take_patches()
        if change is not None:
            kind = "state" if isinstance(change, AgentState) else "patch"
            data = {kind: change.model_dump(mode="json", exclude_defaults=True)}
            recorded = await self._host.note(r.PATCHED, "patch", data)
            if "state" in recorded:
                self._state = AgentState.model_validate(recorded["state"])
            elif self._state is not None:
                self._state = self._state.patched(StatePatch.model_validate(recorded["patch"]))
        if self._state is None:
            raise UsageError(
                "this task has no state to patch yet; begin with a whole one: ctx.patch(AgentState(goal=…))"
            )
        return self._state

    async def _take_patches(self) -> None:
        if self._state is not None:
            from onward.core.state import StatePatch  # noqa: PLC0415 -- as above

            for message in await self._host.patches():
                self._state = self._state.patched(StatePatch.model_validate(message["patch"]))

    def spending(self, budget: Budget) -> Spending:
        """What this task may spend: by this budget, or the budget it was submitted with, and by the budgets of the tasks above it."""
        return self._host.spending(budget)

    # ── several at once ──────────────────────────────────────────────────────────────────────────────────────────

    # fmt: off
    # by name; without input; with the handler's one argument; with its arguments by name. Then the same for plain functions.
    @overload
    async def submit(self, handler: str, input: Any = None, /, **options: Unpack[ChildOptions]) -> Child[Any]: ...
    @overload
    async def submit(self, handler: Callable[[Any], Awaitable[T]], input: None = None, /, **options: Unpack[ChildOptions]) -> Child[T]: ...
    @overload
    async def submit(self, handler: Callable[[Any, InputT], Awaitable[T]], input: InputT, /, **options: Unpack[ChildOptions]) -> Child[T]: ...
    @overload
    async def submit(self, handler: Callable[Concatenate[Any, ...], Awaitable[T]], input: Mapping[str, Any], /, **options: Unpack[ChildOptions]) -> Child[T]: ...
    @overload
    async def submit(self, handler: Callable[[Any], T], input: None = None, /, **options: Unpack[ChildOptions]) -> Child[T]: ...
    @overload
    async def submit(self, handler: Callable[[Any, InputT], T], input: InputT, /, **options: Unpack[ChildOptions]) -> Child[T]: ...
    @overload
    async def submit(self, handler: Callable[Concatenate[Any, ...], T], input: Mapping[str, Any], /, **options: Unpack[ChildOptions]) -> Child[T]: ...
    # fmt: on
    async def submit(
        self,
        handler: Callable[..., Any] | str,
        input: Any = None,  # noqa: A002
        /,
        **options: Any,
    ) -> Child[Any]:
        """Start a child task, exactly once, also across crashes. Options as for `app.submit`, except `key` and `connection`: a child has a
        key of its own. Await the returned child for its result."""
        check_child_options(options)
        if not isinstance(handler, str) and not callable(handler):
            refuse_value("submit", handler)
        name = handler if isinstance(handler, str) else self._host.task_name(handler) or function_name(handler)
        return Child(self._host, await self._host.child(name, input, options), name)

    # fmt: off
    # as for asyncio.gather: type checkers see a tuple where they can count, though it is a list
    @overload
    async def gather(self, w1: Awaitable[T1], /, *, limit: int | None = None, return_exceptions: Literal[False] = False) -> tuple[T1]: ...  # type: ignore[overload-overlap]
    @overload
    async def gather(self, w1: Awaitable[T1], w2: Awaitable[T2], /, *, limit: int | None = None, return_exceptions: Literal[False] = False) -> tuple[T1, T2]: ...  # type: ignore[overload-overlap]
    @overload
    async def gather(self, w1: Awaitable[T1], w2: Awaitable[T2], w3: Awaitable[T3], /, *, limit: int | None = None, return_exceptions: Literal[False] = False) -> tuple[T1, T2, T3]: ...  # type: ignore[overload-overlap]
    @overload
    async def gather(self, w1: Awaitable[T1], w2: Awaitable[T2], w3: Awaitable[T3], w4: Awaitable[T4], /, *, limit: int | None = None, return_exceptions: Literal[False] = False) -> tuple[T1, T2, T3, T4]: ...  # type: ignore[overload-overlap]
    @overload
    async def gather(self, w1: Awaitable[T1], w2: Awaitable[T2], w3: Awaitable[T3], w4: Awaitable[T4], w5: Awaitable[T5], /, *, limit: int | None = None, return_exceptions: Literal[False] = False) -> tuple[T1, T2, T3, T4, T5]: ...  # type: ignore[overload-overlap]
    @overload
    async def gather(self, w1: Awaitable[T1], /, *, limit: int | None = None, return_exceptions: bool) -> tuple[T1 | BaseException]: ...
    @overload
    async def gather(self, w1: Awaitable[T1], w2: Awaitable[T2], /, *, limit: int | None = None, return_exceptions: bool) -> tuple[T1 | BaseException, T2 | BaseException]: ...
    @overload
    async def gather(self, w1: Awaitable[T1], w2: Awaitable[T2], w3: Awaitable[T3], /, *, limit: int | None = None, return_exceptions: bool) -> tuple[T1 | BaseException, T2 | BaseException, T3 | BaseException]: ...
    @overload
    async def gather(self, w1: Awaitable[T1], w2: Awaitable[T2], w3: Awaitable[T3], w4: Awaitable[T4], /, *, limit: int | None = None, return_exceptions: bool) -> tuple[T1 | BaseException, T2 | BaseException, T3 | BaseException, T4 | BaseException]: ...
    @overload
    async def gather(self, w1: Awaitable[T1], w2: Awaitable[T2], w3: Awaitable[T3], w4: Awaitable[T4], w5: Awaitable[T5], /, *, limit: int | None = None, return_exceptions: bool) -> tuple[T1 | BaseException, T2 | BaseException, T3 | BaseException, T4 | BaseException, T5 | BaseException]: ...
    @overload
    async def gather(self, *work: Awaitable[T], limit: int | None = None, return_exceptions: Literal[False] = False) -> list[T]: ...
    @overload
    async def gather(self, *work: Awaitable[T], limit: int | None = None, return_exceptions: bool) -> list[T | BaseException]: ...
    # fmt: on
    async def gather(self, *work: Awaitable[Any], limit: int | None = None, return_exceptions: bool = False) -> Any:
        """Run steps, children or coroutines that use the context at once, at most `limit` of them; the results in order.
        All run to their end; then the first failure, in order, is raised."""
        check_branches(work)
        makers = [functools.partial(_await, branch) for branch in work]
        try:
            return await self._host.gather(makers, limit=limit, return_exceptions=return_exceptions)
        finally:
            for branch in work:  # those that did not start before the shift ended
                if inspect.iscoroutine(branch) and inspect.getcoroutinestate(branch) == inspect.CORO_CREATED:
                    branch.close()

    @overload
    async def map(
        self, function: str, items: Iterable[Any], *, limit: int | None = None, **options: Unpack[ChildOptions]
    ) -> list[Any]: ...
    @overload
    async def map(
        self,
        function: Callable[[InputT], Awaitable[T]],
        items: Iterable[InputT],
        *,
        limit: int | None = None,
        **options: Unpack[StepOptions],
    ) -> list[T]: ...
    @overload
    async def map(
        self,
        function: Callable[[InputT], T],
        items: Iterable[InputT],
        *,
        limit: int | None = None,
        **options: Unpack[StepOptions],
    ) -> list[T]: ...
    async def map(
        self, function: Callable[..., Any] | str, items: Iterable[Any], *, limit: int | None = None, **options: Any
    ) -> list[Any]:
        """A step of the function for each item, at once, at most `limit` of them; the results in order. A handler's name
        makes each a child task instead. Options as for `step` and `submit`."""
        if not isinstance(function, str):
            if not callable(function):
                refuse_value("map", function)
            refuse_handler("map", function, self._host.task_name(function))

        async def child(item: Any) -> Any:
            return await (await self.submit(str(function), item, **options))

        def maker(item: Any) -> Callable[[], Awaitable[Any]]:
            if isinstance(function, str):
                return lambda: child(item)
            return lambda: self.step(function, item, **options)

        return await self._host.gather([maker(item) for item in items], limit=limit, return_exceptions=False)

    # ── the same in every replay ─────────────────────────────────────────────────────────────────────────────────

    async def now(self) -> float:
        """The time (seconds since 1970) at which this line was first reached."""
        return float(await self._generated("now", self._host.now))

    async def random(self) -> float:
        """A random number in [0, 1) that stays the same in every replay."""
        return float(await self._generated("random", self._host.rng.random))

    async def uuid(self) -> str:
        """A random UUID that stays the same in every replay."""
        return str(
            await self._generated("uuid", lambda: str(uuid.UUID(int=self._host.rng.getrandbits(128), version=4)))
        )

    async def version(self, name: str) -> bool:
        """True for tasks that reach this line with the new code, False for tasks that had passed it before the line was
        there: `if await ctx.version("two-factor"): …` lets old tasks go on with the old code."""
        return await self._host.version(name)

    async def _generated(self, name: str, make: Callable[[], Any]) -> Any:
        async def step() -> Any:
            return make()

        return await self._run(Call(name, step))

    def progress(self, message: str = "", step: int = 0, total: int = 0, **more: Any) -> None:
        """Report progress to watchers; `total` 0 means unknown. Further values are passed on unchanged. Inside a transaction this
        does nothing, because the record of the transaction has the next number."""
        self._host.mention({"message": str(message), "step": step, "total": total, **more})


async def _await(work: Awaitable[Any]) -> Any:
    return await work


def _no_function() -> None:
    """The function of a block, which has none."""


def _timeout(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds(timeout, "timeout")


def _default(default: Any, why: str) -> Any:
    if default is RAISE:
        raise WaitTimeout(why)
    return default


async def save_artifact(ctx: Context, data: bytes | str, about: dict[str, Any]) -> ArtifactRef:
    """Store the bytes and return the ref. In the handler itself this is a step of its own; inside a step it is part of that step, whose
    record names the ref. Raises ArtifactTooLarge."""
    raw = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else bytes(data)
    if len(raw) > MAX_ARTIFACT_BYTES:
        raise ArtifactTooLarge(len(raw), MAX_ARTIFACT_BYTES)
    step_key = SCOPE.get().key

    async def keep() -> dict[str, Any]:
        return await ctx._host.save_artifact(raw, about)

    saved = await (ctx._run(Call("artifact", keep)) if step_key is None else keep())
    # Pydantic takes long to import: not inside of a transaction, where `keep` raises UsageError.
    from onward.core.state import ArtifactRef, StatePatch  # noqa: PLC0415

    ref = ArtifactRef.model_validate(saved)
    if step_key is not None:
        ctx._saved_refs = {**ctx._saved_refs, step_key: [*ctx._saved_refs.get(step_key, ()), ref]}
    elif ctx.state is not None:
        await ctx.patch(StatePatch(add_artifacts=(ref,)))
    return ref


def take_refs(ctx: Context) -> list[ArtifactRef]:
    """The artifacts of the running step, removed from the context. Call it once, at the end of the step."""
    key = SCOPE.get().key
    refs = ctx._saved_refs.get(key or "", [])
    ctx._saved_refs = {other: of_other for other, of_other in ctx._saved_refs.items() if other != key}
    return refs
