"""Takes the deliveries out of an AMQP connection, before the client reads them.

The client (aiormq) makes six objects and an asyncio task for each message that a queue delivers, which takes longer than to make a task of
the message. A delivery is three frames: the method with its number, the header with the properties, and the body, which may have more than
one frame. `Tap` reads them from the bytes of the connection, and gives all other frames to the client as they came.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from yarl import URL

READ_BYTES = 262_144
"""Bytes that are read from the connection at once."""

HEARTBEAT_INTERVAL_S = 2.0
"""Seconds after which the client gets a heartbeat while deliveries come: the server sends none meanwhile, and a client that gets no frame takes
the connection for broken."""

METHOD, HEADER, BODY = 1, 2, 3
"""The types of frames."""

_FRAME = struct.Struct(">BHI")
"""The beginning of a frame: its type, its channel, and its size."""
_NUMBER = struct.Struct(">Q")
_DELIVER = struct.pack(">HH", 60, 60)
"""The class and the number of the method that delivers a message."""
_END = 0xCE
"""The last byte of a frame."""
_HEARTBEAT = _FRAME.pack(8, 0, 0) + bytes([_END])
_GREETING = b"AMQP"
"""With this a server refuses the version of the protocol."""


class Delivery(NamedTuple):
    """A message that a queue delivered."""

    tag: int
    """Its number in the channel."""
    properties: Basic.Properties
    body: bytes


class Tap(TransportFactory):
    """Makes the connections of a client, and calls `take` with each delivery."""

    def __init__(self, take: Callable[[Delivery], None]) -> None:
        self._take = take

    async def create(self, url: URL, **options: Any) -> tuple[Any, asyncio.StreamWriter]:
        """A connection, with a reader that keeps deliveries from the client."""
        factory = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, writer = await factory.create(url, **options)
        return _Reader(reader, self._take), writer


class _Reader:
    """The part of `asyncio.StreamReader` that the client uses."""

    def __init__(self, reader: asyncio.StreamReader, take: Callable[[Delivery], None]) -> None:
        self._reader, self._take = reader, take
        self._come, self._left = bytearray(), bytearray()
        """The bytes that were not looked at, and those that are for the client."""
        self._tag: int | None = None
        """The delivery of which not all frames have come, if any; with its channel, header, and the part of its body that is here."""
        self._channel = 0
        self._header = ContentHeader()
        self._body = bytearray()
        self._next_heartbeat = 0.0

    def at_eof(self) -> bool:
        return not self._left and self._reader.at_eof()

    async def readexactly(self, count: int) -> bytes:
        while len(self._left) < count:
            if not (data := await self._reader.read(READ_BYTES)):
                raise asyncio.IncompleteReadError(bytes(self._left), count)
            self._look(data)
        part = bytes(self._left[:count])
        del self._left[:count]
        return part

    def _look(self, data: bytes) -> None:
        come = self._come
        come += data
        start, end, taken = 0, len(come), 0
        while end - start >= _FRAME.size:
            if come.startswith(_GREETING, start):
                self._left += come
                start = end
                break
            kind, channel, size = _FRAME.unpack_from(come, start)
            content, after = start + _FRAME.size, start + _FRAME.size + size + 1
            if after > end:
                break
            if come[after - 1] == _END and self._is_delivery(kind, channel, come, content):
                taken += 1
                self._add(kind, channel, come, content, after - 1)
            else:
                self._left += come[start:after]
            start = after
        del come[:start]
        if taken and not self._left and (now := asyncio.get_running_loop().time()) >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_INTERVAL_S
            self._left += _HEARTBEAT

    def _is_delivery(self, kind: int, channel: int, come: bytearray, content: int) -> bool:
        if kind == METHOD:
            return come.startswith(_DELIVER, content)
        return self._tag is not None and channel == self._channel and kind in {HEADER, BODY}

    def _add(self, kind: int, channel: int, come: bytearray, content: int, end: int) -> None:
        """Add a frame to the delivery, and give the delivery away when it is complete."""
        if kind == METHOD:
            name = content + len(_DELIVER)  # of the consumer; one byte is its length
            (self._tag,), self._channel = _NUMBER.unpack_from(come, name + 1 + come[name]), channel
            return
        if kind == HEADER:
            self._header, self._body = ContentHeader(), bytearray()
            self._header.unmarshal(bytes(come[content:end]))
        else:
            self._body += come[content:end]
        if len(self._body) >= self._header.body_size:
            assert self._tag is not None
            delivery, self._tag = Delivery(self._tag, self._header.properties, bytes(self._body)), None
            self._take(delivery)
