"""What an intake needs from a broker. Each broker has one module that implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from onward.brokers.message import Received


class Finding(NamedTuple):
    """A sentence of `onward doctor` about a broker or a place."""

    fine: bool | None
    """None for a fact that is neither right nor wrong but worth knowing, such as a warning."""
    detail: str
    """What was seen, and where it is not right, how to put it right."""


class Source(Protocol):
    """A stream, queue, topic or subject of a broker, read by one process of a group. Every verb raises BrokerUnavailable when the broker
    does not answer; the caller then closes the source, waits, and opens it again."""

    async def open(self) -> None:
        """Connect, and join the group. What the group did not acknowledge comes again."""
        ...

    async def fetch(self, most: int, wait: float) -> Sequence[Received]:
        """Up to `most` messages, as soon as there is one; none after `wait` seconds."""
        ...

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """Tell the broker that these are done. They may come again when its answer is lost."""
        ...

    async def hold(self, received: Sequence[Received]) -> None:
        """Tell the broker that these are not done yet, so that it does not give them to another process now."""
        ...

    async def lag(self) -> int | None:
        """How many messages wait; None where the broker does not say."""
        ...

    async def check(self) -> Sequence[Finding]:
        """Look at the broker and the place, for `onward doctor`: whether the place exists, and whether the broker keeps messages safe. It
        is called in place of `open`, joins no group, and changes nothing. An empty place: the broker alone. No finding: all is well."""
        ...

    async def close(self) -> None:
        """Disconnect. Never raises."""
        ...
