"""Rehearsals: a handler is run over a journal with nothing behind it. What the journal has is handed out; whatever would be
new ends it. No step is run and nothing is written, so that it can be tried on living tasks, with code that nobody runs yet.

It is a shift (the very code that would do the task) with a pen that cannot write. The handler's own code is somebody's: it
may hang, raise, or end the process, so each rehearsal has a thread and a loop of its own, and a time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn, TypeVar, cast

from onward.artifacts.keeper import Artifacts
from onward.core import wire
from onward.core.budget import Budget
from onward.core.clock import Clock, SystemClock
from onward.core.control import Control, Park
from onward.core.record import Record
from onward.core.task import Task
from onward.engine.context.arguments import with_placeholders
from onward.engine.context.secrets import PlaceholderSecrets
from onward.engine.handlers import Handler
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.mail import Message
from onward.engine.shift.replay import Known, Replay
from onward.engine.shift.scope import SCOPE, Scope
from onward.engine.shift.services import WorkerServices
from onward.engine.shift.shift import Shift
from onward.engine.shift.spending import Spending
from onward.engine.shift.threads import Threads
from onward.engine.shift.timeout import GRACE, bounded
from onward.engine.shift.waits import Waits
from onward.errors import OnwardError, UnfitCheckpoint
from onward.store.port.core import Claimed, Store
from onward.store.writer import Hold

T = TypeVar("T")


class Walked(Control):
    """The handler came to something that the journal does not have."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)


class Hung(OnwardError):
    """The handler did not come to an end in its time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Walk:
    """How a rehearsal ended: one of the first four is set, or the handler returned `result`."""

    parks: str = ""
    """Why the task would park."""
    new: str = ""
    """The step, not in the journal, that it would go on with."""
    error: BaseException | None = None
    hangs: bool = False
    result: Any = None
    left: str | None = None
    """A step that the journal has and the code had not asked for by then."""
    begun: bool = True
    """Whether the handler takes the input at all."""


class Library:
    """What a rehearsal may read. It is asked on the loop to which the store belongs; a rehearsal has another."""

    def __init__(self, store: Store, artifacts: Artifacts) -> None:
        self.store, self.artifacts, self._loop = store, artifacts, asyncio.get_running_loop()

    async def ask(self, question: Coroutine[Any, Any, T]) -> T:
        """The answer."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(question, self._loop))


class _BlindPen(ShiftJournal):
    """Reads, and ends the shift where it would have to write."""

    def __init__(self, desk: WorkerServices, hold: Hold) -> None:
        super().__init__(desk, hold)
        self.plain = False

    def next(self, scope: Scope, key: str, kinds: frozenset[str], mark: str = "") -> Known | None:
        known = super().next(scope, key, kinds, mark)
        self.plain = False
        return known

    async def may_go_on(self) -> None:
        scope = SCOPE.get()
        asked = scope.prefix + scope.last
        if self.ended_by is None:
            await self.until_told()
        raise self.end(Walked(asked))

    async def flushed(self) -> None:
        """Nothing was written."""

    async def append(self, kind: str, key: str, data: bytes) -> NoReturn:  # noqa: ARG002 -- as the pen it stands for
        raise self.end(Walked(key))

    def mention(self, kind: str, key: str, data: dict[str, Any]) -> NoReturn:  # noqa: ARG002
        raise self.end(Walked(key))


class _DeafWaits(Waits):
    """Nobody can say anything new."""

    async def _heard(self, key: str, *, last: bool) -> list[Message]:  # noqa: ARG002 -- as the waits they stand for
        return []


class _BareDesk:
    """What a shift finds on its desk when there is no worker: a clock, threads, what its task keeps, and nobody to write to."""

    store = writer = lease = None

    def __init__(self, threads: Threads, clock: Clock, library: Library) -> None:
        self.threads, self.clock, self.rng = threads, clock, random.Random(0)  # noqa: S311 -- nothing is drawn
        self.library, self.secrets = library, PlaceholderSecrets()

    def now(self) -> float:
        return self.clock.now()


class DryRun(Shift):
    """One task, rehearsed."""

    pen = _BlindPen
    waits = _DeafWaits

    def __init__(self, desk: WorkerServices, claimed: Claimed, handler: Handler) -> None:
        super().__init__(desk, claimed, handler)
        self._kept: dict[str, bytes] = {}

    def mention(self, data: dict[str, Any]) -> None:
        """Nobody watches."""

    def spending(self, budget: Budget) -> Spending:  # noqa: ARG002 -- nothing is spent
        return Spending(self._desk, self._pen, {}, Budget())

    async def patches(self) -> list[Any]:
        """Only those that the journal has."""
        return await self._waits.patches(look=False)

    def keep(self, data: bytes) -> str:
        """It is kept while the rehearsal lasts."""
        name = wire.content_id(data)
        self._kept[name] = data
        return name

    async def contents(self, ids: Sequence[str], of: str | None = None) -> dict[str, bytes]:
        """What the task keeps, and what it would."""
        library, there = cast("_BareDesk", self._desk).library, [name for name in ids if name not in self._kept]
        found = await library.ask(library.store.contents(of or self.task_id, there)) if there else {}
        return found | {name: self._kept[name] for name in ids if name in self._kept}

    async def left(self, artifact_id: str, of: str | None = None) -> bytes:
        """What the task left behind."""
        library = cast("_BareDesk", self._desk).library
        return await library.ask(library.artifacts.get(of or self.task_id, artifact_id))

    async def walk(self, records: Sequence[Record]) -> Walk:
        """Run the handler as far as the journal goes."""
        self._pen.task = asyncio.current_task()
        SCOPE.set(self._root)
        try:
            self._pen.read(Replay(records), self._allowed)
        except UnfitCheckpoint as unfit:
            return Walk(parks=str(unfit))
        if self._pen.replay.checkpoint:
            self._begin_at(self._pen.replay.checkpoint)
        self._pen.plain = False
        try:
            self._handler.arguments(with_placeholders(wire.decode(self._claimed.input)))
        except BaseException as error:
            return Walk(error=error, left=self._pen.replay.leftover(), begun=False)
        try:
            result = await self._call_handler()
            self._check_returned()
        except BaseException as error:
            return self._left(self._cause(error))
        return Walk(result=result)

    def _left(self, error: BaseException) -> Walk:
        match error:
            case Park() | UnfitCheckpoint():
                return Walk(parks=str(error))
            case Walked():
                return Walk(new=error.key)
            case _:
                return Walk(error=error, left=self._pen.replay.leftover())


async def rehearse(
    handler: Handler, task: Task, records: Sequence[Record], threads: Threads, library: Library, seconds: float
) -> Walk:
    """Run the handler over the journal, for at most so long."""
    claimed = Claimed(
        task.task_id, task.task, wire.encode(task.input), b"{}", len(records) + 1, task.attempt, 0, 0.0, 0.0, None, 0
    )
    clock = SystemClock()

    def alone() -> Walk:
        desk = cast("WorkerServices", _BareDesk(threads, clock, library))
        work = bounded(DryRun(desk, claimed, handler).walk(records), clock, seconds, Hung)
        try:
            return cast("Walk", asyncio.run(work))
        except Hung:
            return Walk(hangs=True)
        except BaseException as error:  # not even a loop survives it
            return Walk(error=error, left="(any)")

    try:
        # A handler that waits is ended by its own loop; one that does not even let that run is left behind.
        return cast("Walk", await bounded(threads.run(alone), clock, seconds + 2 * GRACE, Hung))
    except Hung:
        return Walk(hangs=True)
