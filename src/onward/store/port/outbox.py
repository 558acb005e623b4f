"""The values of the outbox: subscriptions, rows to deliver, results of attempts (see `shared/outbox.py`)."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from onward.core.event import Origin
from onward.core.record import Record

PENDING, DELIVERED, FAILED = "pending", "delivered", "failed"
SKIPPED = "skipped"
"""The event does not concern its subscription after all: the row is deleted."""

FUNCTION_LANE, BROKER_LANE = "on:", "broker:"
"""The names of lanes begin with these: of a function of the app, and of a place of a broker. All others are lanes of webhooks."""

MAX_LANE_DEPTHS = 1000
"""Receivers of which one call of `depths` counts the events."""

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
    number: int
    """The number of the row."""

    @property
    def id(self) -> str:
        """The id by which receivers recognise a repeat. After a restore the same number is another record, so the epoch is in it."""
        return f"{self.key}.{self.origin.epoch}" if self.origin.epoch else str(self.key)


NO_KEY = "the relay has not its encryption key"
"""Why an event waits that no relay could decrypt."""

UNSIGNED = "not sent yet: a worker has no ONWARD_WEBHOOK_SECRET and cannot sign it; one that has the secret sends it"
NO_CLIENT = "not sent yet: a worker has no HTTP client (pip install 'onward[client]'); one that has it sends it"
"""Why a webhook waits that the relays which saw it could not send."""


class Settled(NamedTuple):
    """The result of an attempt: delivered, failed for good, or pending again in `delay` seconds. `said` is the answer of the receiver.
    `attempt` is 0 when that was no attempt: it is not counted then."""

    key: Key
    attempts: int
    state: str
    delay: float
    said: str
    attempt: int = 1


class Lane(NamedTuple):
    """A receiver with pending rows, and in how many seconds the first is due (0 or less: now)."""

    name: str
    due_in: float


class LaneDepth(NamedTuple):
    """How many events wait for a receiver, and how many seconds ago the oldest happened."""

    name: str
    events: int
    oldest_s: float


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
