"""The port of subscriptions and the outbox: which events have to be delivered, and to whom.

Triggers on the journal write the rows, in the transaction of the record. So every writer is covered: a worker of an older version, a
transaction of the caller, a statement of a later version. The triggers exist from the first subscription on (`watch`), so that a
database without subscriptions pays nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from onward.core.event import Origin
from onward.core.record import Record

PENDING, DELIVERED, FAILED = "pending", "delivered", "failed"
SKIPPED = "skipped"
"""The event does not concern its subscription after all: the row is deleted."""

AFTER_LAST = 2**62
"""A number above the numbers of all rows."""


class SubscriptionRow(NamedTuple):
    """A subscription. `types` are words with blanks between them, and `kinds` are the kinds of records that they stand for. `lane` names
    the receiver: each receiver has its own pace. `disabled` says why nothing is sent any more."""

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
    """The identity of a row of the outbox: the record and the subscription."""

    task_id: str
    seq: int
    subscription: str

    def __str__(self) -> str:
        own = "" if self.subscription == self.task_id else f".{self.subscription}"
        return f"{self.task_id}.{self.seq}{own}"

    @classmethod
    def parse(cls, text: str) -> Key | None:
        """A key from its string; None where the string is not one."""
        task_id, _, rest = text.partition(".")
        seq, _, subscription = rest.partition(".")
        fits = text.isascii() and text.isprintable() and seq.isdecimal() and len(seq) < 10
        return cls(task_id, int(seq), subscription or task_id) if fits else None


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """A row that the relay sends now, with all data of its event."""

    key: Key
    attempts: int
    """The number of this attempt."""
    types: tuple[str, ...]
    sink: str
    record: Record
    origin: Origin
    body: bytes | None


class Settled(NamedTuple):
    """The result of an attempt: delivered, failed for good, or pending again in `delay` seconds. `said` is the answer of the receiver."""

    key: Key
    attempts: int
    state: str
    delay: float
    said: str


class Lane(NamedTuple):
    """A receiver with pending rows, and in how many seconds the first is due (0 or less: now)."""

    name: str
    due_in: float


class DeliveryRow(NamedTuple):
    """A row of the outbox for display."""

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
    """Subscriptions, and the rows that are to be delivered."""

    async def watch(self, *, busy: bool) -> None:
        """Make the triggers that compare records with the subscriptions: records `task.…`, and with `busy` all others too. A caller does this
        before it adds the first subscription that needs them."""
        ...

    async def subscribe(self, row: SubscriptionRow, *, offered: bool = False) -> None:
        """Add a subscription, or change the types of one with this id. `offered` says that a process with its function runs now."""
        ...

    async def unsubscribe(self, subscription: str) -> bool:
        """Remove a subscription and its pending rows; False when there is none."""
        ...

    async def disable(self, subscription: str, why: str) -> None:
        """Send nothing for a subscription any more; its pending rows have failed."""
        ...

    async def subscriptions(
        self,
        *,
        tenant: str | None,
        limit: int,
        after: str = "",
        id: str | None = None,  # noqa: A002
    ) -> list[SubscriptionRow]:
        """Subscriptions that are not the webhook of a task, by their ids; or the one with this id, also when it is a webhook of a task. Of one
        tenant, or of all (None)."""
        ...

    async def lanes(self, after: str = "", most: int = 1000) -> list[Lane] | None:
        """Receivers with pending rows, by name; None when there is no subscription at all."""
        ...

    async def take(self, lane: str, room: int, holder: str, lease: float) -> list[Taken]:
        """Take rows of a receiver that are due. The holder has them for `lease` seconds, and each take is an attempt. Of each subscription
        and task only the first pending row is taken, so that the order is kept."""
        ...

    async def keep_bodies(self, holder: str, bodies: Sequence[tuple[Key, bytes]]) -> None:
        """Store the bodies of these rows before they are sent."""
        ...

    async def extend(self, holder: str, keys: Sequence[Key], lease: float) -> None:
        """Hold these rows for `lease` more seconds."""
        ...

    async def settle(self, holder: str, settled: Sequence[Settled]) -> None:
        """Store the results of attempts. A row that the holder does not have any more is left as it is."""
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
        before: int = AFTER_LAST,
    ) -> list[DeliveryRow]:
        """Rows of the outbox below a number, the newest first; with `seq`, of that record of the `task`."""
        ...

    async def redeliver(self, key: Key) -> bool:
        """Make a row due now, with no attempts counted; False when there is no such row, its subscription is gone or disabled, or a relay
        is sending it."""
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
        """Remove rows that were delivered, or failed, so many seconds ago. Drop rows beyond `most` for one receiver, and rows of removed
        subscriptions. For the `strange` receivers, which the caller cannot reach, fail rows that no relay took for `waiting` seconds. A
        call does some of it; True when there may be more."""
        ...
