"""Branches: several lines of one handler at once, each in a scope of its own, all replayed alike.

Every branch of a gather runs to its end; then the first failure, in the order of the branches, is raised. So what the handler
sees does not depend on which of them was quicker.

A named branch is for code that starts its own asyncio tasks, as agent frameworks do for the tools of one turn. Its steps are
known by its name, and not by the order in which the tasks begin.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any

from onward.core.control import Control
from onward.engine.shift.journal import ShiftJournal
from onward.engine.shift.scope import SCOPE, Scope
from onward.engine.shift.waits import Waits
from onward.errors import BadSetting


class Branches:
    """The branches of one shift; `scopes` are all that exist just now."""

    def __init__(self, journal: ShiftJournal, waits: Waits) -> None:
        self._journal, self._waits = journal, waits
        self.scopes: set[Scope] = set()

    async def gather(
        self, makers: Sequence[Callable[[], Awaitable[Any]]], *, limit: int | None, return_exceptions: bool
    ) -> list[Any]:
        """The results, in order. At most `limit` run at once."""
        if limit is not None and limit < 1:
            raise BadSetting("limit", limit, "1 or more")
        outer = SCOPE.get()
        name = outer.next_name("gather")
        if self._journal.replay.unread:
            path = outer.inner(f"{name}.").path
            self._journal.run_check(self._journal.replay.check_branches, path, len(makers))
        gather = _Gather(self._waits, len(makers))
        waiting = collections.deque(enumerate(makers))

        def start_next() -> None:
            if waiting:
                number, make = waiting.popleft()
                scope = outer.inner(f"{name}.{number}")
                self.scopes.add(scope)
                gather.start(number, self._run_branch(scope, make, gather, number))

        gather.start_next = start_next
        for _ in range(limit or len(makers)):
            start_next()
        await gather.wait()
        return gather.collect(return_exceptions=return_exceptions)

    def named(self, name: str) -> NamedBranch:
        """A branch with a name of its own, which code outside of the engine runs beside others."""
        return NamedBranch(self, self._journal, self._waits, name)

    async def _run_branch(self, scope: Scope, make: Callable[[], Awaitable[Any]], gather: _Gather, number: int) -> None:
        SCOPE.set(scope)
        try:
            gather.results[number] = await self._run_to_end(scope, make)
        except BaseException as error:
            gather.errors[number] = error
            gather.shift_ends = gather.shift_ends or isinstance(error, Control)
        finally:
            self.scopes.discard(scope)

    async def _run_to_end(self, scope: Scope, make: Callable[[], Awaitable[Any]]) -> Any:
        """The result of a branch. The shift ends when the journal has more of the branch than its code asked for."""
        check = self._journal.replay.check_over
        try:
            result = await make()
        except Exception:
            self._journal.run_check(check, scope.path)
            raise
        self._journal.run_check(check, scope.path)
        return result


class NamedBranch:
    """`async with ctx.branch(name):` The scope around it waits while such branches are open."""

    def __init__(self, branches: Branches, journal: ShiftJournal, waits: Waits, name: str) -> None:
        self._branches, self._journal, self._waits, self._name = branches, journal, waits, name

    async def __aenter__(self) -> None:
        self._outer = SCOPE.get()
        self._scope = self._outer.branch(self._name)
        if self._journal.ended_by is not None:
            raise self._journal.ended_by
        if self._outer.branches:
            self._waits.active += 1
        else:  # the first branch takes the place of the scope around it
            self._outer.key, self._outer.reported = self._scope.path, True
        self._outer.branches += 1
        self._waits.may_get_branches = True
        self._branches.scopes.add(self._scope)
        SCOPE.set(self._scope)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        SCOPE.set(self._outer)
        self._branches.scopes.discard(self._scope)
        self._outer.branches -= 1
        if self._outer.branches:
            self._waits.branch_ended()
        else:
            self._outer.key = None
        if error is None or isinstance(error, Exception):
            self._journal.run_check(self._journal.replay.check_over, self._scope.path)


class _Gather:
    """One gather: its tasks, results and errors."""

    def __init__(self, waits: Waits, count: int) -> None:
        self._waits = waits
        self.results: list[Any] = [None] * count
        self.errors: dict[int, BaseException] = {}
        self.shift_ends = False
        """Whether a branch was left because the shift ends: no other begins."""
        self.start_next: Callable[[], None] = lambda: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not count:
            self._done.set_result(None)

    def start(self, number: int, branch: Any) -> None:
        self._waits.active += 1
        task = asyncio.get_running_loop().create_task(branch, name=f"onward-branch-{number}")
        self._tasks.add(task)
        task.add_done_callback(self._branch_ended)

    def _branch_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self.shift_ends:
            self.start_next()  # before the count of active lines goes down: the next branch takes the place of this one
        self._waits.branch_ended()
        if not self._tasks and not self._done.done():
            self._done.set_result(None)

    async def wait(self) -> None:
        """Wait until the last branch has ended. When cancelled, cancel all of them."""
        self._waits.active -= 1
        try:
            await self._done
        except asyncio.CancelledError:
            self.start_next = lambda: None  # no other branch takes the place of one that was cancelled
            for task in list(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            raise
        finally:
            self._waits.active += 1

    def collect(self, *, return_exceptions: bool) -> list[Any]:
        """The results in order. Raises what ends the shift, or else the error of the first branch that failed."""
        for error in self.errors.values():
            if isinstance(error, Control | asyncio.CancelledError):
                raise error
        if return_exceptions:
            return [self.errors.get(number, result) for number, result in enumerate(self.results)]
        if self.errors:
            raise self.errors[min(self.errors)]
        return self.results
