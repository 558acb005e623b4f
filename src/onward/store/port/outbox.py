"""Subscriptions and the outbox, in the store: what has to leave, and to whom. A part of the Store's contract.

The rows are written by triggers on the journal, in the transaction of the record they tell of, whoever writes it: a worker of an
older version, somebody's own transaction, a statement that is not written yet. The triggers are there from the first
subscription on (`watch`), so that whoever has none pays nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from onward.core.event import Origin
from onward.core.record import Record

PENDING, DELIVERED, FAILED = "pending", "delivered", "failed"
SKIPPED = "skipped"
"""What turned out to be nothing for its subscription: the row goes."""

LAST = 2**62
"""A number above all numbers of rows."""


class SubscriptionRow(NamedTuple):
    """Who wants to hear of what. `types` are words with blanks between them, `kinds` the kinds of records they stand for,
    `lane` names the receiver: its pace is its own. `disabled` says why nothing is sent any more."""

    id: str
    task_id: str | None
    tenant: str | None
    types: str
    kinds: str
    sink: str
    lane: str
    created_at: float = 0.0
    offered_at: float | None = None
    disabled: str | None = None
    dropped: int = 0


class Key(NamedTuple):
    """What names a row of the outbox: the record, and who is told of it."""

    task_id: str
    seq: int
    subscription: str

    def __str__(self) -> str:
        own = "" if self.subscription == self.task_id else f".{self.subscription}"
        return f"{self.task_id}.{self.seq}{own}"

    @classmethod
    def parse(cls, text: str) -> Key | None:
        """The other way round; None for what cannot be one."""
        task_id, _, rest = text.partition(".")
        seq, _, subscription = rest.partition(".")
        fits = text.isascii() and text.isprintable() and seq.isdecimal() and len(seq) < 10
        return cls(task_id, int(seq), subscription or task_id) if fits else None


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """A row that we send now, with all it takes to say what it is about."""

    key: Key
    attempts: int
    """Which attempt this is."""
    types: tuple[str, ...]
    sink: str
    record: Record
    origin: Origin
    body: bytes | None


class Settled(NamedTuple):
    """What came of an attempt: delivered, failed for good, or pending again in `delay` seconds."""

    key: Key
    attempts: int
    state: str
    delay: float
    said: str


class Lane(NamedTuple):
    """A receiver with something to send, and in how many seconds (0 or less: now)."""

    name: str
    due_in: float


class DeliveryRow(NamedTuple):
    """A row of the outbox as people see it."""

    number: int
    task_id: str
    seq: int
    subscription: str
    kind: str
    state: str
    attempts: int
    due_at: float
    at: float
    done_at: float | None
    said: str | None
    sink: str | None
    sending: bool

    @property
    def key(self) -> Key:
        return Key(self.task_id, self.seq, self.subscription)


class Outbox(Protocol):
    """What every Store keeps about events for others. The promises of all verbs of the Store hold here too."""

    async def watch(self, *, busy: bool) -> None:
        """From now on records are compared with the subscriptions: what becomes of tasks, and with `busy` all others. Before
        the first subscription that needs it."""
        ...

    async def subscribe(self, row: SubscriptionRow, *, offered: bool = False) -> None:
        """Add a subscription, or change the types of one with this id. `offered` says that somebody is there for it now."""
        ...

    async def unsubscribe(self, subscription: str) -> bool:
        """Remove it, and what was still to be sent for it; False when there is none."""
        ...

    async def disable(self, subscription: str, why: str) -> None:
        """Nothing is sent for it any more; what was still to be sent has failed."""
        ...

    async def subscriptions(
        self,
        *,
        tenant: str | None,
        limit: int,
        after: str = "",
        id: str | None = None,  # noqa: A002
    ) -> list[SubscriptionRow]:
        """Subscriptions that somebody made, by their ids, or the one with this id, also where it is a task's own; of one tenant,
        or of all (None)."""
        ...

    async def lanes(self, after: str = "", most: int = 1000) -> list[Lane] | None:
        """Receivers for whom something is to be sent, by name; None when there is no subscription at all."""
        ...

    async def take(self, lane: str, room: int, holder: str, lease: float) -> list[Taken]:
        """Rows of a receiver that are due, ours for `lease` seconds; each counts as an attempt. Of each subscription and task
        only the first that is still to be sent, so that the order is kept."""
        ...

    async def keep_bodies(self, holder: str, bodies: Sequence[tuple[Key, bytes]]) -> None:
        """Remember what is sent, before it is."""
        ...

    async def extend(self, holder: str, keys: Sequence[Key], lease: float) -> None:
        """Ours for `lease` more seconds."""
        ...

    async def settle_deliveries(self, holder: str, settled: Sequence[Settled]) -> None:
        """What came of attempts. One that is not ours any more is left alone."""
        ...

    async def deliveries(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        seq: int | None = None,
        subscription: str | None = None,
        tenant: str | None = None,
        limit: int = 1,
        before: int = LAST,
    ) -> list[DeliveryRow]:
        """Rows of the outbox, newest first, below a number; with a `seq`, of that record of the `task`."""
        ...

    async def redeliver(self, key: Key) -> bool:
        """Send it now, and again from the first attempt on; False when there is no such row, or its subscription is gone, or
        it is being sent just now."""
        ...

    async def sweep(
        self,
        lanes: Sequence[str],
        strange: Sequence[str],
        *,
        delivered: float,
        failed: float,
        waiting: float,
        most: int,
    ) -> bool:
        """Remove what was delivered, or failed, so many seconds ago; drop what goes beyond `most` rows for one receiver, and what
        is for a subscription that is gone; for the `strange` of them, whom the caller cannot tell anything, give up what nobody
        took for `waiting` seconds. Some at a time; True when there may be more."""
        ...
