"""The context: what a handler sees of the engine.

It names things and nothing more. Everything that happens goes through the small `Host` beneath it (run a step, wait, mark
a place, mention, start a child, now), so that another engine can host the same handlers.
"""

from __future__ import annotations

import functools
import inspect
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from onward.core import record as r
from onward.core import secret, wire
from onward.core.durations import Duration, seconds
from onward.core.retry import Retry
from onward.engine.context.child import Child
from onward.engine.context.host import Call, Host
from onward.engine.context.secrets import making, with_secrets
from onward.engine.shift.scope import SCOPE
from onward.errors import BadSetting, Denied, InvalidInput, UsageError, WaitTimeout

if TYPE_CHECKING:
    from onward.core.budget import Budget
    from onward.core.state import AgentState, ArtifactRef, StatePatch
    from onward.engine.shift.spending import Spending

T = TypeVar("T")
_NOTHING: Mapping[str, Any] = {}
EFFECTS = ("read", "idempotent", "once")
RAISE: Any = object()
"""The default of a wait that has none: when its time is up, it raises."""


class Context:
    """Handed to every handler as its first argument."""

    _left: Mapping[str, list[ArtifactRef]] = _NOTHING

    def __init__(self, host: Host) -> None:
        self._host = host
        self._run = host.run
        self._state: AgentState | None = None

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return self._host.task_id

    @property
    def host(self) -> Host:
        """The engine beneath, for what is built on top of a context."""
        return self._host

    @property
    def attempt(self) -> int:
        """1 at first, one more after each failure of the task. Crashes, sleeps and waits leave it alone."""
        return self._host.attempt

    @property
    def key(self) -> str:
        """The effect key of the step that runs now: the same in every attempt of this step and of no other, so that an
        outside service can recognise a call it has seen before."""
        running = SCOPE.get().key
        if running is None:
            raise UsageError("ctx.key names the effect of a running step: use it inside the function given to ctx.step")
        return f"{self._host.effects_of}:{running}"

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def step(
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
        """Run the function and keep its result; after a crash, hand out the kept result instead of running it again.

        Until its result is recorded the function may run again after a crash: give the outside `ctx.key` to recognise
        it. Where that is not enough, say so: `effect="once"` is announced before it starts and never repeated unless a
        person says that it did not happen; `reconcile` (called with the same arguments; None means that it did not
        happen, anything else is its result) is asked before it is repeated. `undo` (the same arguments, and `result`
        where it has a parameter of that name) takes it back when the saga around it fails.

        `retry` (a Retry, or a number of attempts) is for failures of this step alone; a task's own retry comes back
        to the failed step as well. `timeout` is for one attempt. Plain functions run in a thread.

        A secret (`app.secret`) among the arguments is put in right before the call, and never recorded. `makes` says that the
        result is a secret, and names it: what comes back is for other steps, and after a crash it is made again.
        """
        call = Call(name or _name(function), function, args, kwargs)
        if retry is not None:
            call.retry = Retry(attempts=retry) if isinstance(retry, int) else retry
        if timeout is not None:
            call.timeout = seconds(timeout, "timeout")
        if args or kwargs:
            call.mark = _mark(args, kwargs)
        if undo is not None:
            call.undo = undo
        if effect is not None or reconcile is not None:
            call.effect, call.reconcile = _effect(effect), reconcile
        if makes is not None:
            return making(self._host, call, makes)
        if secret.used:
            with_secrets(self._host.keyring, call)
        return self._run(call)

    def saga(self, name: str = "saga") -> Any:
        """`async with ctx.saga():` When the block fails, is cancelled or runs out of time, its finished steps with an `undo`
        are undone, the last first. Sagas may lie in each other."""
        return self._host.saga(name)

    def transaction(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *args: Any,
        name: str | None = None,
        retry: Retry | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Your writes and the record of the step commit together, or not at all: exactly once.

        `await ctx.transaction(function, …)` calls it with a connection of the store's own database and the arguments, and
        keeps its result. `async with ctx.transaction() as connection:` does the same for a block; after a crash the block's
        statements are not sent again but answered from the record. `retry` (a Retry, or a number of attempts) calls the function again in
        a new transaction when it fails; a block cannot be run again, so it takes none.
        """
        if function is None:
            if retry is not None:
                raise UsageError(
                    "a block cannot be run again: `ctx.transaction(retry=…)` takes a function, `await ctx.transaction(function, …, retry=3)`"
                )
            return self._host.transaction(Call(name or "transaction", _nobody))
        call = Call(name or _name(function), function, args, kwargs)
        if retry is not None:
            call.retry = Retry(attempts=retry) if isinstance(retry, int) else retry
        if args or kwargs:
            call.mark = _mark(args, kwargs)
        if secret.used:
            with_secrets(self._host.keyring, call)
        return self._host.transaction(call).run()

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def sleep(self, duration: Duration, *, name: str = "sleep") -> None:
        """Wait without holding a slot, across restarts, until `duration` after this line was first reached."""
        await self._host.wait(r.SLEEP, name, {"for": seconds(duration, "sleep")}, seconds(duration, "sleep"))

    async def signal(self, name: str, *, timeout: Duration | None = None, default: Any = RAISE) -> Any:
        """The value of the next signal of that name (`app.signal(id, name, value)`); one that came before is kept."""
        message = await self._host.wait(r.SIGNAL, f"signal {name}", {"signal": name}, _timeout(timeout))
        return message["value"] if message is not None else _default(default, f"no signal {name!r} came in time")

    async def messages(self, *, last: bool = False) -> list[Any]:
        """What people said to this task (`app.message`) since this was asked last, in order; nothing is waited for. An agent
        reads it before every turn.

        With `last` there is no message that the task could complete without having read: when one comes before its result is
        written, it is not, and the handler begins anew as after a crash.
        """
        return await self._host.messages(last=last)

    async def ask(
        self, question: str, *, choices: Iterable[str] = (), timeout: Duration | None = None, default: Any = RAISE
    ) -> Any:
        """Ask a person, and return the answer (`app.answer`, `onward answer`)."""
        said = {"question": str(question), "choices": list(choices)} if choices else {"question": str(question)}
        message = await self._host.wait(r.QUESTION, "question", said, _timeout(timeout))
        return message["value"] if message is not None else _default(default, f"nobody answered in time: {question}")

    async def approve(
        self,
        what: str,
        *,
        risk: str | None = None,
        data: Any = None,
        timeout: Duration | None = None,
        default: str = "deny",
    ) -> dict[str, Any]:
        """Go on only when a person approves (`app.decide`, `onward approve`); raises Denied, with the reason, when not. When
        nobody decides in time, `default` does."""
        if default not in {"approve", "deny"}:
            raise BadSetting("default", default, "'approve' or 'deny'")
        said = {"what": str(what), "risk": risk, "data": data, "default": None if timeout is None else default}
        said = {name: value for name, value in said.items() if value is not None}
        message = await self._host.wait(r.APPROVAL, "approval", said, _timeout(timeout))
        late = {"decision": default, "reason": "nobody decided in time"}
        decided: dict[str, Any] = late if message is None else message["value"]
        if decided["decision"] != "approve":
            raise Denied(str(what), decided.get("reason") or "")
        return decided

    # ── what a long task keeps ───────────────────────────────────────────────────────────────────────────────────

    def keep(self, data: bytes | str) -> str:
        """Keep bytes or a text outside the journal, once however often it is kept; its name, for a step's result. It is
        durable with the next record, which may refer to it."""
        return self._host.keep(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)

    async def kept(self, *names: str) -> list[bytes]:
        """What was kept under these names."""
        found = await self._host.contents(list(dict.fromkeys(names)))
        if missing := [name for name in names if name not in found]:
            raise UsageError(f"this task keeps nothing under {', '.join(map(repr, missing))}")
        return [found[name] for name in names]

    async def artifact(self, data: bytes | str, *, type: str = "text", summary: str = "") -> ArtifactRef:  # noqa: A002
        """Leave bytes or a text behind (`app.artifacts`, `onward artifacts`): durable before the record that tells of it. In the
        handler's own line it is a step, and the state, where there is one, gets the ref. In a step it is part of the step."""
        from onward.engine.context.artifacts import leave  # noqa: PLC0415 -- pydantic, as below

        return await leave(self, data, {"type": type, "summary": summary})

    async def read_artifact(self, artifact: ArtifactRef | str) -> bytes:
        """The bytes of an artifact of this task, by its ref or its id. Raises ArtifactNotFound."""
        return await self._host.read_artifact(artifact if isinstance(artifact, str) else artifact.artifact_id)

    async def checkpoint(self, value: Any) -> None:
        """From now on the task goes on from here: after a crash the handler begins anew with `ctx.restored` as this value, and
        what came before is not replayed. So what the code does after a checkpoint must be what it does when it begins with
        one, as in a loop over what is left. Only where nothing is open: no step, saga, branch or child."""
        await self._host.checkpoint(wire.decode(wire.encode(value, "the checkpoint")))

    async def flush(self) -> None:
        """Until all that this task has recorded is durable; the results of reads may wait (`checkpoint=` of the handler)."""
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
        """Change the state of this task, with the next commit; a whole state begins it. What it is now. What others have sent
        (`app.patch`) comes first; without a change of its own this takes only that."""
        from onward.core.state import AgentState, StatePatch  # noqa: PLC0415 -- pydantic, which most tasks do not need

        if not isinstance(change, AgentState):
            await self._take_patches()
        if change is not None:
            kind = "state" if isinstance(change, AgentState) else "patch"
            said = {kind: change.model_dump(mode="json", exclude_defaults=True)}
            told = await self._host.note(r.PATCHED, "patch", said)
            if "state" in told:
                self._state = AgentState.model_validate(told["state"])
            elif self._state is not None:
                self._state = self._state.patched(StatePatch.model_validate(told["patch"]))
        if self._state is None:
            raise UsageError(
                "this task has no state to patch yet; begin with a whole one: ctx.patch(AgentState(goal=…))"
            )
        return self._state

    async def _take_patches(self) -> None:
        if self._state is not None:
            from onward.core.state import StatePatch  # noqa: PLC0415 -- as above

            for sent in await self._host.patches():
                self._state = self._state.patched(StatePatch.model_validate(sent["patch"]))

    def spending(self, budget: Budget) -> Spending:
        """What this task may spend: by this budget, or the one it was submitted with, and by those of the tasks above it."""
        return self._host.spending(budget)

    # ── several at once ──────────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, handler: Callable[..., Any] | str, input: Any = None, /, **options: Any) -> Child:  # noqa: A002
        """Start a child task, once, whatever crashes. Options as for `app.submit`. Await the answer for its result."""
        name = handler if isinstance(handler, str) else _name(handler)
        return Child(self._host, await self._host.child(name, input, options), name)

    async def gather(
        self, *work: Awaitable[Any], limit: int | None = None, return_exceptions: bool = False
    ) -> list[Any]:
        """Run steps, children or coroutines that use the context at once, at most `limit` of them; the results in order.
        All run to their end; then the first failure, in order, is raised."""
        makers = [functools.partial(_itself, one) for one in work]
        try:
            return await self._host.gather(makers, limit=limit, return_exceptions=return_exceptions)
        finally:
            for one in work:  # those that did not get their turn before the shift ended
                if inspect.iscoroutine(one) and inspect.getcoroutinestate(one) == inspect.CORO_CREATED:
                    one.close()

    async def map(
        self, function: Callable[..., Any] | str, items: Iterable[Any], *, limit: int | None = None, **options: Any
    ) -> list[Any]:
        """A step of the function for each item, at once, at most `limit` of them; the results in order. A handler's name
        makes each a child task instead. Options as for `step` and `submit`."""

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
        return float(await self._made("now", self._host.now))

    async def random(self) -> float:
        """A random number in [0, 1) that stays the same in every replay."""
        return float(await self._made("random", self._host.rng.random))

    async def uuid(self) -> str:
        """A random UUID that stays the same in every replay."""
        return str(await self._made("uuid", lambda: str(uuid.UUID(int=self._host.rng.getrandbits(128), version=4))))

    async def version(self, name: str) -> bool:
        """True for tasks that come to this line with the new code, False for those that had passed it before the line was
        there: `if await ctx.version("two-factor"): …` lets old tasks keep the old way."""
        return await self._host.version(name)

    async def _made(self, name: str, make: Callable[[], Any]) -> Any:
        async def step() -> Any:
            return make()

        return await self._run(Call(name, step))

    def progress(self, message: str = "", step: int = 0, total: int = 0, **more: Any) -> None:
        """Tell whoever watches how far it is; `total` 0 is unknown. What else is said goes along as it is. (Inside a transaction
        nothing is told: its record has the next number.)"""
        self._host.mention({"message": str(message), "step": step, "total": total, **more})


async def _itself(work: Awaitable[Any]) -> Any:
    return await work


def _nobody() -> None:
    """A block has no function."""


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    if name is None:
        inner = function.func if isinstance(function, functools.partial) else function
        name = getattr(inner, "__name__", type(inner).__name__)
    return str(name)


def _mark(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    try:
        return wire.fingerprint([args, kwargs])
    except InvalidInput:  # an argument that is not JSON is the caller's own business
        return ""


def _effect(effect: str | None) -> str | None:
    if effect is not None and effect not in EFFECTS:
        raise BadSetting("effect", effect, f"one of {', '.join(EFFECTS)}")
    return effect


def _timeout(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds(timeout, "timeout")


def _default(default: Any, why: str) -> Any:
    if default is RAISE:
        raise WaitTimeout(why)
    return default
