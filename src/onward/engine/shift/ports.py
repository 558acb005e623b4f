"""What a shift needs from the engine below it: a store that it reads and sends with, and a writer that appends to its journal.

The engine of this package gives it the whole `Store` and the `Writer` of its worker. Another engine (`onward/engines/`) gives it these few
verbs. Each verb keeps the promise of the same verb of `store/port/core.py` or `store/writer.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from onward.core.budget import BudgetLedger, Granted
from onward.core.page import Page
from onward.core.quota import Shut
from onward.core.record import Entry, Record
from onward.core.task import Message, Task
from onward.store.port.core import ALL_MESSAGES, End, Sent, Wait
from onward.store.port.listing import MAX_BYTES
from onward.store.writer import Hold


class BudgetLedgers(Protocol):
    """The ledgers of budgets."""

    async def change(
        self, holders: Sequence[str], change: Callable[[Mapping[str, BudgetLedger]], Granted], /
    ) -> Granted:
        """Change the ledgers of these tasks, all in one transaction."""
        ...


class ProviderQuotas(Protocol):
    """The used-up quotas of outside services."""

    async def get(self, name: str, /) -> Shut | None:
        """The quota, when it was used up; None otherwise."""
        ...

    async def shut(self, name: str, seconds: float | None, why: str, /) -> Shut:
        """Shut a quota for this long, or for a while that grows where the time is unknown."""
        ...

    async def reopen(self, name: str, until: float, /) -> None:
        """Open a quota that was shut until that time."""
        ...


class Checkpoints(Protocol):
    """The checkpoints of journals."""

    async def trim(self, task_id: str, keep: int, before: float, /) -> int:
        """Drop the records behind the last `keep` checkpoints, and those from before that time."""
        ...


class Announcements(Protocol):
    """The readers of this process that follow journals."""

    def announce(self) -> None:
        """Tell them that there are new records."""
        ...


class ShiftStore(Protocol):
    """What a shift reads and sends."""

    @property
    def codec(self) -> object | None:
        """Not None where payloads are encrypted: then no log line has values of the task."""
        ...

    @property
    def budgets(self) -> BudgetLedgers: ...

    @property
    def quotas(self) -> ProviderQuotas: ...

    @property
    def pruning(self) -> Checkpoints: ...

    @property
    def tails(self) -> Announcements: ...

    async def get(self, task_id: str, whose: str | None = None, /) -> Task | None:
        """A task; None when it does not exist or is of another tenant."""
        ...

    async def journal(
        self, task_id: str, after: int | None = 0, limit: int = 1000, most: int = MAX_BYTES, /
    ) -> Page[Record]:
        """Records with numbers above `after`, in order, of about `most` bytes; with None, from the last checkpoint on."""
        ...

    async def inbox(self, task_id: str, after: int = 0, limit: int = ALL_MESSAGES, /) -> list[Message]:
        """The messages with numbers above `after`, in order."""
        ...

    async def contents(self, task_id: str, ids: Sequence[str], /) -> dict[str, bytes]:
        """The contents of this task that have these names; unknown ones are missing."""
        ...

    async def send(self, task_id: str, message: Message, /) -> Sent:
        """Put a message into the inbox of an unfinished task."""
        ...

    async def transact(
        self, body: Callable[[Any], Awaitable[Entry]], seconds: float, known: float | None = None, /
    ) -> bool:
        """Run the body in a transaction that also appends the record that it returns."""
        ...

    def nudge(self, topic: str, tasks: Sequence[str] = (), /) -> None:
        """Tell all listeners that something of this topic may have happened."""
        ...


class StepWriter(Protocol):
    """The part of a writer that the result of a step goes through."""

    def append(self, hold: Hold, kind: str, key: str, data: bytes, /) -> Awaitable[None]:
        """Append a record. The caller awaits the answer: then the record is durable, or Fenced is raised."""
        ...


class JournalWriter(Protocol):
    """What a shift appends."""

    def append(self, hold: Hold, kind: str, key: str, data: bytes, /) -> asyncio.Future[None]:
        """Append a record; the future is done when it is durable, and raises Fenced when it was refused."""
        ...

    def mention(self, hold: Hold, kind: str, key: str, data: bytes, /) -> None:
        """Append a record with the next commit, and do not wait for it."""
        ...

    def defer(self, hold: Hold, kind: str, key: str, data: bytes, /) -> None:
        """Append a record with the next commit, without being a reason for one."""
        ...

    def settle(self, hold: Hold, kind: str, data: bytes, ending: End | Wait, /) -> asyncio.Future[None]:
        """Append the last record of a shift together with the end or the wait that it leads to."""
        ...

    async def flushed(self, hold: Hold, /) -> None:
        """Wait until all records of this hold so far are durable."""
        ...

    def keep(self, hold: Hold, name: str, data: bytes, /) -> None:
        """Write contents with the next record of this hold."""
        ...

    def unwritten(self, hold: Hold, names: Iterable[str], /) -> dict[str, bytes]:
        """Those contents of this hold that have these names and may not be durable yet."""
        ...
