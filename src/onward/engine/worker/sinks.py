"""The ways out that a relay knows: functions of the app, webhooks, and brokers. Each has one class that implements `Sink`.

The relay decides when rows are taken and what becomes of them; a sink sends them. The module of webhooks is in `onward.sinks`, that of
brokers in `onward.brokers`: the app joins them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from onward.core import mask
from onward.core.epoch import CAUSE, lost_at
from onward.core.event import Event
from onward.core.sealed import ENCRYPTED_TEXT
from onward.engine.context.arguments import is_async
from onward.engine.shift.threads import Threads
from onward.store.port.core import Store
from onward.store.port.outbox import BROKER_LANE, FUNCTION_LANE, Taken
from onward.telemetry import Trace, outgoing

log = logging.getLogger("onward.relay")

MAX_ATTEMPTS_PER_LANE = 8
"""Attempts for one receiver at a time, in one process; a receiver that failed last gets one at a time."""


class SendResult(NamedTuple):
    """The result of one attempt. `down`: the receiver has trouble with all requests, not with this one; `rest`: for how many seconds it
    wants no request; `gone`: it wants none ever again; `refused`: it will never take this event, and others it does."""

    ok: bool
    detail: str
    down: bool = False
    rest: float | None = None
    gone: bool = False
    refused: bool = False


class Outgoing(NamedTuple):
    """An event that is to be sent now, and its bytes (none for a function)."""

    row: Taken
    event: Event
    body: bytes

    @property
    def trace(self) -> Trace:
        """The headers with the trace of its task."""
        return outgoing(self.row.key.task_id, {"trace": self.row.origin.trace})


class Rules(NamedTuple):
    """How the relay deals with the lanes of a sink."""

    rows: int
    """Rows of a lane that are sent at a time."""
    bodiless: bool = False
    """Whether events are sent as objects, and not as bytes."""
    keeps_bodies: bool = False
    """Whether the bytes are stored before the first attempt, so that a repeat has the same."""
    lasting: bool = False
    """Whether rows wait for as long as it takes: none is dropped or given up, an attempt while the receiver is down does not count, and a
    row that the receiver has is deleted. Several rows of one task are sent at a time, in their order. The id of an event is that of its
    delivery: two subscriptions may send one record to one place, as events of two types."""


class Sink(Protocol):
    """Sends events to the lanes of one kind."""

    rules: Rules

    def owns(self, lane: str) -> bool:
        """Whether a lane is of this kind."""
        ...

    def serves(self, lane: str) -> bool:
        """Whether this process can send to a lane."""
        ...

    def lacks(self, lane: str) -> str | None:
        """Why this process cannot send to a lane that every worker should serve, in a sentence for the delivery; None otherwise."""
        ...

    async def connect(self, lane: str) -> str | None:
        """Connect to the receiver, where that is done before rows are taken; why it cannot be done now, or None. Never raises."""
        ...

    async def send(self, lane: str, batch: Sequence[Outgoing]) -> list[SendResult]:
        """Make one attempt at each, which never raises and ends by itself. The results are in the order of the batch."""
        ...

    async def close(self) -> None:
        """Disconnect from all receivers. Never raises."""
        ...


class Functions:
    """The sink that calls functions of the app."""

    rules = Rules(MAX_ATTEMPTS_PER_LANE, bodiless=True)

    def __init__(self, functions: Mapping[str, Callable[[Event], Any]], store: Store) -> None:
        self._functions, self._store = functions, store
        self._threads = Threads()

    def owns(self, lane: str) -> bool:
        """See `Sink`."""
        return lane.startswith(FUNCTION_LANE)

    def serves(self, lane: str) -> bool:
        """Whether the app has the function."""
        return lane.removeprefix(FUNCTION_LANE) in self._functions

    def lacks(self, lane: str) -> str | None:  # noqa: ARG002 -- see `Sink`
        """Nothing: other programs on the same database have functions of their own."""
        return None

    async def connect(self, lane: str) -> str | None:  # noqa: ARG002 -- see `Sink`
        """There is nothing to connect to."""
        return None

    async def send(self, lane: str, batch: Sequence[Outgoing]) -> list[SendResult]:
        """Call the function with each event, all at once: they are of different tasks."""
        function = self._functions[lane.removeprefix(FUNCTION_LANE)]
        return await asyncio.gather(*[self._call(function, outgoing.event) for outgoing in batch])

    async def _call(self, function: Callable[[Event], Any], event: Event) -> SendResult:
        CAUSE.set(lost_at(self._store.epoch, event.at))  # a task that it submits may have been submitted after a backup
        try:
            if is_async(function):
                await function(event)
            elif self._store.inline:
                function(event)
            else:
                await self._threads.run(function, event)
        except Exception as error:
            kind = type(error).__name__
            if self._store.codec is not None:  # its message may quote values that are encrypted in the journal
                log.warning("%s of task %s: %s %s", event.type, event.task_id, kind, ENCRYPTED_TEXT)
                return SendResult(False, kind)
            log.warning("%s of task %s: %r", event.type, event.task_id, error, exc_info=True)
            return SendResult(False, mask.text(f"{kind}: {error}")[:300])
        return SendResult(True, "done")

    async def close(self) -> None:
        """End the threads of functions that are not async."""
        self._threads.close()


class UrlSender(Protocol):
    """Sends events to URLs."""

    def serves(self, lane: str) -> bool:
        """Whether this process can send to a lane."""
        ...

    def lacks(self, lane: str) -> str | None:
        """See `Sink`."""
        ...

    async def send(self, lane: str, subscription: str, message: str, url: str, body: bytes, trace: Trace) -> SendResult:
        """Make one attempt, which never raises and ends by itself. `trace` are headers that the signature does not cover."""
        ...


class Urls:
    """The sink that sends webhooks. The sender is made when the first lane of a webhook is there: most programs send none."""

    rules = Rules(MAX_ATTEMPTS_PER_LANE, keeps_bodies=True)

    def __init__(self, sender: Callable[[], UrlSender]) -> None:
        self._sender = sender

    def owns(self, lane: str) -> bool:
        """See `Sink`."""
        return not lane.startswith((FUNCTION_LANE, BROKER_LANE))

    def serves(self, lane: str) -> bool:
        """See `Sink`."""
        return self._sender().serves(lane)

    def lacks(self, lane: str) -> str | None:
        """See `Sink`."""
        return self._sender().lacks(lane)

    async def connect(self, lane: str) -> str | None:  # noqa: ARG002 -- see `Sink`
        """Each attempt opens its own connection."""
        return None

    async def send(self, lane: str, batch: Sequence[Outgoing]) -> list[SendResult]:
        """Make the attempts side by side: they are of different tasks."""
        sender = self._sender()
        return await asyncio.gather(
            *[
                sender.send(lane, row.key.subscription, row.id, row.sink, outgoing.body, outgoing.trace)
                for outgoing in batch
                for row in [outgoing.row]
            ]
        )

    async def close(self) -> None:
        """Nothing is open between two attempts."""
