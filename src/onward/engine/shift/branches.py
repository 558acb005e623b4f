"""Branches: several lines of one handler at once, each in a scope of its own, all replayed alike.

Every branch runs to its end; then the first failure, in the order of the branches, is raised. So what the handler sees
does not depend on which of them was quicker.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from onward.core.control import Control
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.scope import SCOPE, Scope
from onward.engine.shift.waits import Waits
from onward.errors import BadSetting


class Branches:
    """The branches of one shift; `scopes` are all that exist just now."""

    def __init__(self, pen: ShiftJournal, waits: Waits) -> None:
        self._pen, self._waits = pen, waits
        self.scopes: set[Scope] = set()

    async def gather(
        self, makers: Sequence[Callable[[], Awaitable[Any]]], *, limit: int | None, return_exceptions: bool
    ) -> list[Any]:
        """The results, in order. At most `limit` run at once."""
        if limit is not None and limit < 1:
            raise BadSetting("limit", limit, "1 or more")
        up = SCOPE.get()
        local = up.next("gather")
        if self._pen.replay.unread:
            self._pen.check(self._pen.replay.check_branches, up.below(f"{local}.").path, len(makers))
        round_ = _Round(self._waits, len(makers))
        waiting = collections.deque(enumerate(makers))

        def start() -> None:
            if waiting:
                number, make = waiting.popleft()
                scope = up.below(f"{local}.{number}")
                self.scopes.add(scope)
                round_.begin(number, self._branch(scope, make, round_, number))

        round_.then = start
        for _ in range(limit or len(makers)):
            start()
        await round_.over()
        return round_.results(return_exceptions=return_exceptions)

    async def _branch(self, scope: Scope, make: Callable[[], Awaitable[Any]], round_: _Round, number: int) -> None:
        SCOPE.set(scope)
        try:
            round_.answers[number] = await self._to_its_end(scope, make)
        except BaseException as error:
            round_.errors[number] = error
            round_.left = round_.left or isinstance(error, Control)
        finally:
            self.scopes.discard(scope)

    async def _to_its_end(self, scope: Scope, make: Callable[[], Awaitable[Any]]) -> Any:
        check = self._pen.replay.check_over
        try:
            answer = await make()
        except Exception:
            self._pen.check(check, scope.path)
            raise
        self._pen.check(check, scope.path)
        return answer


class _Round:
    """One gather: its tasks, answers and errors."""

    def __init__(self, waits: Waits, count: int) -> None:
        self._waits = waits
        self.answers: list[Any] = [None] * count
        self.errors: dict[int, BaseException] = {}
        self.left = False
        """Whether a branch was left because the shift ends: no other begins."""
        self.then: Callable[[], None] = lambda: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not count:
            self._done.set_result(None)

    def begin(self, number: int, work: Any) -> None:
        self._waits.active += 1
        task = asyncio.get_running_loop().create_task(work, name=f"onward-branch-{number}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self.left:
            self.then()  # before the count goes down: the next takes its place
        self._waits.branch_over()
        if not self._tasks and not self._done.done():
            self._done.set_result(None)

    async def over(self) -> None:
        """Until the last has ended. Cancelled, it takes them all along."""
        self._waits.active -= 1
        try:
            await self._done
        except asyncio.CancelledError:
            self.then = lambda: None  # no other branch takes the place of one that was cancelled
            for task in list(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            raise
        finally:
            self._waits.active += 1

    def results(self, *, return_exceptions: bool) -> list[Any]:
        for error in self.errors.values():
            if isinstance(error, Control | asyncio.CancelledError):
                raise error
        if return_exceptions:
            return [self.errors.get(number, answer) for number, answer in enumerate(self.answers)]
        if self.errors:
            raise self.errors[min(self.errors)]
        return self.answers
