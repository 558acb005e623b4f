"""Nudges: hints that there may be something new. A nudge may be lost or doubled, so every listener polls as well.

Inside a process a nudge is a call. Between processes each store has its own way (`send`), and the hub makes sure that a busy process
sends few of them: the first goes out at once, those of the next 20 ms together.

A nudge for ready tasks names them. The store that sends it wakes about as many workers of other processes as there is work, and tells each
the queue (`ready QUEUE`); the others sleep on.

A nudge for each commit of records (news) would be far too many. News go out only while another process follows tasks. That process says so
every few seconds (`FOLLOW`), and when a worker that has just begun to listen asks for it (`WHO`).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

SEND_EVERY_S = 0.02
"""Seconds between two messages to other processes."""

NEWS, FOLLOW, WHO = "news", "follow", "who"
READY, ENDED = "ready", "ended"
MAX_NAMED = 50
"""Tasks that a nudge can name; with more of them it goes to all workers."""

SPARE = 1
"""Workers that a nudge wakes beyond the number of tasks: one of them may be busy, or dead."""

Waiting = Mapping[str, "frozenset[str] | None"]
"""Topics that go out, each with the tasks that it names; None is for all workers."""

FOLLOWED_S = 12.0
"""Seconds for which a message that a process follows is valid."""


class Hub:
    """The listeners of one process, and the way out to the others."""

    def __init__(self, send: Callable[[Waiting], None] | None = None) -> None:
        self._listeners: dict[str, list[Callable[..., None]]] = {}
        self._send = send
        self._waiting: dict[str, frozenset[str] | None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def listen(self, topic: str, callback: Callable[..., None]) -> Callable[[], None]:
        self._listeners.setdefault(topic, []).append(callback)
        return lambda: self._listeners[topic].remove(callback)

    def nudge(self, topic: str, tasks: Sequence[str] = ()) -> None:
        self.heard(topic)
        if self._send is None:
            return
        named = self._waiting.get(topic, frozenset()) if tasks else None
        named = None if named is None else named.union(tasks)
        self._waiting[topic] = named if named is not None and len(named) <= MAX_NAMED else None
        if self._timer is None:
            self._flush()

    def heard(self, message: str) -> None:
        """Call the listeners in this process. A message is a topic; `READY` may have the name of a queue after a space. It may come from
        any program that reaches the database: a word after another topic is left out."""
        topic, _, queue = message.partition(" ")
        for callback in list(self._listeners.get(topic, ())):
            callback(*([queue] if queue and topic == READY else ()))

    def _flush(self) -> None:
        self._timer = None
        if self._waiting and self._send is not None:
            waiting, self._waiting = self._waiting, {}
            self._send(waiting)
            self._timer = asyncio.get_running_loop().call_later(SEND_EVERY_S, self._flush)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class News:
    """Hints that records were committed."""

    def __init__(self, hub: Hub, send: Callable[[Waiting], None] | None = None) -> None:
        self._hub, self._out = hub, None if send is None else Hub(send)
        self._until = 0.0
        hub.listen(FOLLOW, self._followed)

    def tell(self) -> None:
        """Tell this process at once, and others when one of them follows."""
        self._hub.heard(NEWS)
        if self._out is not None and asyncio.get_running_loop().time() < self._until:
            self._out.nudge(NEWS)

    def _followed(self) -> None:
        self._until = asyncio.get_running_loop().time() + FOLLOWED_S

    def close(self) -> None:
        if self._out is not None:
            self._out.close()


class Bell(Protocol):
    """A way for nudges between processes beside that of the database: a broker, where a pooler stands before PostgreSQL."""

    @property
    def listening(self) -> bool:
        """Whether nudges of other processes arrive now."""
        ...

    async def connected(self) -> None:
        """Connect, and wait for it."""
        ...

    def ring(self, topics: Sequence[str]) -> None:
        """Send nudges soon. They may be lost."""
        ...

    def listen(self, heard: Callable[[str], None]) -> None:
        """Call `heard` with each nudge from now on, and for what may have been missed when the connection was broken."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


MAX_PENDING = 100
"""Different messages that a process keeps until the next look; with more of them it looks at all queues."""


class Gathered:
    """Messages from outside, as few calls: the first at once, those of the next `SEND_EVERY_S` together."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        self._heard = heard
        self._pending: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, message: str) -> None:
        if len(self._pending) >= MAX_PENDING:
            message = message.partition(" ")[0]  # the topic alone: all queues
        self._pending.add(message)
        if self._timer is None:
            self._flush()

    def _flush(self) -> None:
        self._timer = None
        if self._pending:
            pending, self._pending = self._pending, set()
            self._timer = asyncio.get_running_loop().call_later(SEND_EVERY_S, self._flush)
            for message in sorted(pending):
                self._heard(message)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Datagrams(asyncio.DatagramProtocol):
    """Nudges between processes of one machine: datagrams on the loopback interface. Any program on the machine can send one. So each begins
    with a token, which is in the address and so in the database: others are ignored. And messages lead to one look in `SEND_EVERY_S` at
    most: the first at once, those of the next moment together."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        self._gathered = Gathered(heard)
        self._token = secrets.token_hex(8)
        self._transport: asyncio.BaseTransport | None = None

    async def open(self) -> str:
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        except OSError:  # no loopback here: polling is enough
            return ""
        return f"udp:{self._transport.get_extra_info('sockname')[1]}:{self._token}"

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002 -- the protocol's signature
        token, _, message = data.partition(b" ")
        if hmac.compare_digest(token, self._token.encode()):
            self._gathered.add(message.decode("utf-8", "ignore"))

    def error_received(self, exc: Exception) -> None: ...

    def close(self) -> None:
        self._gathered.close()
        if self._transport is not None:
            self._transport.close()


def send_datagrams(topics: Iterable[str], addresses: Iterable[str]) -> None:
    """Send one datagram for each topic and address; ignore what cannot be sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        for address in addresses:
            port, _, token = address.removeprefix("udp:").partition(":")
            for topic in topics:
                try:
                    message = f"{token} {topic}" if token else topic  # without a token: a worker of a version before
                    sender.sendto(message.encode(), ("127.0.0.1", int(port)))
                except (OSError, OverflowError, ValueError):  # also an address of an unknown kind
                    continue
