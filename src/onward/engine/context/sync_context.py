"""The context of a handler that is a plain function, which runs in a thread: its methods block where those of `Context` are awaited."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, TypeVarTuple, Unpack, overload

from onward.engine.context.child import Child
from onward.engine.context.context import RAISE, Context
from onward.engine.context.signatures import T_co
from onward.engine.shift.scope import SCOPE
from onward.errors import UsageError

if TYPE_CHECKING:
    from onward.core.budget import Budget
    from onward.core.durations import Duration
    from onward.core.retry import Retry
    from onward.core.state import AgentState, ArtifactRef, StatePatch
    from onward.engine.context.host import Host
    from onward.engine.context.signatures import ChildOptions, StepOptions, TransactionOptions
    from onward.engine.shift.locks import HeldLock
    from onward.engine.shift.spending import Spending

T = TypeVar("T")
InputT = TypeVar("InputT")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")


class SyncChild(Child[T_co]):
    """A child task of a handler that is a plain function: `result()` blocks."""

    def __init__(self, child: Child[T_co], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(child._host, child.id, child.task)
        self._loop = loop

    def result(self, timeout: Duration | None = None, *, partial: bool = False) -> T_co:  # type: ignore[override]  # it is not awaited
        """Wait for the result and return it, as `Child.result`."""
        return _wait(super().result(timeout, partial=partial), self._loop)


class SyncContext:
    """The context of a handler that is a plain function: its methods block and are not awaited, and `with` takes the place of
    `async with`. The `result` of a child blocks too; `gather` waits for several."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context, self._loop = context, loop

    if TYPE_CHECKING:  # the methods of Context without `await`; a test compares the names
        # fmt: off
        @property
        def task_id(self) -> str: ...
        @property
        def host(self) -> Host: ...
        @property
        def attempt(self) -> int: ...
        @property
        def labels(self) -> dict[str, str]: ...
        @property
        def tick(self) -> float | None: ...
        @property
        def key(self) -> str: ...
        @property
        def replaying(self) -> bool: ...
        @property
        def restored(self) -> Any: ...
        @property
        def state(self) -> AgentState | None: ...
        @overload
        def step(self, function: Callable[..., Any], /, *args: Any, makes: str, name: str | None = None, retry: Retry | int | None = None, timeout: Duration | None = None, **kwargs: Any) -> Any: ...
        @overload
        def step(self, function: Callable[[*Ts], Awaitable[T]], /, *args: *Ts, **options: Unpack[StepOptions]) -> T: ...
        @overload
        def step(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
        @overload
        def step(self, function: Callable[[*Ts], T], /, *args: *Ts, **options: Unpack[StepOptions]) -> T: ...
        @overload
        def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
        def step(self, *args: Any, **kwargs: Any) -> Any: ...  # type: ignore[misc]
        def branch(self, name: str) -> AbstractContextManager[None, None]: ...
        def saga(self, name: str = "saga") -> AbstractContextManager[Any, None]: ...
        def lock(self, name: str, *, timeout: Duration | None = None) -> AbstractContextManager[HeldLock, None]: ...
        @overload
        def transaction(self, function: None = None, /, *, name: str | None = None) -> AbstractContextManager[Any, None]: ...
        @overload
        def transaction(self, function: Callable[[Any, *Ts], Awaitable[T]], /, *args: *Ts, **options: Unpack[TransactionOptions]) -> T: ...
        @overload
        def transaction(self, function: Callable[Concatenate[Any, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
        def transaction(self, *args: Any, **kwargs: Any) -> Any: ...  # type: ignore[misc]
        def sleep(self, duration: Duration, *, name: str = "sleep") -> None: ...
        def signal(self, name: str, *, timeout: Duration | None = None, default: Any = RAISE) -> Any: ...
        def messages(self, *, last: bool = False) -> list[Any]: ...
        def ask(self, question: str, *, choices: Iterable[str] = (), timeout: Duration | None = None, default: Any = RAISE) -> Any: ...
        def approve(self, what: str, *, risk: str | None = None, data: Any = None, timeout: Duration | None = None, default: str = "deny") -> dict[str, Any]: ...
        def keep(self, data: bytes | str) -> str: ...
        def kept(self, *names: str) -> list[bytes]: ...
        def artifact(self, data: bytes | str, *, type: str = "text", summary: str = "") -> ArtifactRef: ...  # noqa: A002
        def read_artifact(self, artifact: ArtifactRef | str) -> bytes: ...
        def checkpoint(self, value: Any) -> None: ...
        def flush(self) -> None: ...
        def patch(self, change: StatePatch | AgentState | None = None) -> AgentState: ...
        def spending(self, budget: Budget) -> Spending: ...
        @overload
        def submit(self, handler: str, input: Any = None, /, **options: Unpack[ChildOptions]) -> SyncChild[Any]: ...
        @overload
        def submit(self, handler: Callable[[Any], Awaitable[T]], input: None = None, /, **options: Unpack[ChildOptions]) -> SyncChild[T]: ...
        @overload
        def submit(self, handler: Callable[[Any, InputT], Awaitable[T]], input: InputT, /, **options: Unpack[ChildOptions]) -> SyncChild[T]: ...
        @overload
        def submit(self, handler: Callable[Concatenate[Any, ...], Awaitable[T]], input: Mapping[str, Any], /, **options: Unpack[ChildOptions]) -> SyncChild[T]: ...
        @overload
        def submit(self, handler: Callable[[Any], T], input: None = None, /, **options: Unpack[ChildOptions]) -> SyncChild[T]: ...
        @overload
        def submit(self, handler: Callable[[Any, InputT], T], input: InputT, /, **options: Unpack[ChildOptions]) -> SyncChild[T]: ...
        @overload
        def submit(self, handler: Callable[Concatenate[Any, ...], T], input: Mapping[str, Any], /, **options: Unpack[ChildOptions]) -> SyncChild[T]: ...
        def submit(self, *args: Any, **kwargs: Any) -> Any: ...
        @overload
        def gather(self, *work: Awaitable[T], limit: int | None = None, return_exceptions: Literal[False] = False) -> list[T]: ...
        @overload
        def gather(self, *work: Awaitable[T], limit: int | None = None, return_exceptions: bool) -> list[T | BaseException]: ...
        def gather(self, *args: Any, **kwargs: Any) -> Any: ...
        @overload
        def map(self, function: str, items: Iterable[Any], *, limit: int | None = None, **options: Unpack[ChildOptions]) -> list[Any]: ...
        @overload
        def map(self, function: Callable[[InputT], Awaitable[T]], items: Iterable[InputT], *, limit: int | None = None, **options: Unpack[StepOptions]) -> list[T]: ...
        @overload
        def map(self, function: Callable[[InputT], T], items: Iterable[InputT], *, limit: int | None = None, **options: Unpack[StepOptions]) -> list[T]: ...
        def map(self, *args: Any, **kwargs: Any) -> Any: ...
        def now(self) -> float: ...
        def random(self) -> float: ...
        def uuid(self) -> str: ...
        def version(self, name: str) -> bool: ...
        def progress(self, message: str = "", step: int = 0, total: int = 0, **more: Any) -> None: ...
        # fmt: on
    else:

        def __getattr__(self, name: str) -> Any:
            attribute = getattr(self._context, name)
            if not callable(attribute):
                return attribute

            @functools.wraps(attribute)
            def call(*args: Any, **kwargs: Any) -> Any:
                if SCOPE.get(None) is None:
                    raise UsageError(
                        f"ctx.{name} was called in a thread that the handler has started; call it in the thread of the handler, and use "
                        "ctx.gather or ctx.map to do several things at once"
                    )
                value = attribute(*args, **kwargs)
                if hasattr(value, "__aenter__"):
                    return _SyncBlock(value, self._loop)
                result = _wait(value, self._loop) if inspect.isawaitable(value) else value
                return SyncChild(result, self._loop) if isinstance(result, Child) else result

            return call


class _SyncBlock:
    """An asynchronous block as a `with` block. The scope that it opens becomes the scope of the function's thread."""

    def __init__(self, block: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._block, self._loop = block, loop

    def __enter__(self) -> Any:
        return _wait(self._block.__aenter__(), self._loop)

    def __exit__(self, *exc: object) -> Any:
        return _wait(self._block.__aexit__(*exc), self._loop)


def _wait(work: Awaitable[T], loop: asyncio.AbstractEventLoop) -> T:
    """Block until the loop has done the work, and return its result. The scope that it left becomes the scope of this thread."""

    async def result_and_scope() -> tuple[T, Any]:
        return await work, SCOPE.get()

    result, scope = asyncio.run_coroutine_threadsafe(result_and_scope(), loop).result()
    SCOPE.set(scope)
    return result
