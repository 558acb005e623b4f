"""Deliveries are taken out of the bytes of an AMQP connection, wherever they are cut; the client gets all other frames as they came."""

from __future__ import annotations

import asyncio
import random

import pamqp.frame
import pytest
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Queue
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from onward.brokers import rabbitmq_frames
from onward.brokers.rabbitmq_frames import Delivery, _Reader

HEARTBEAT = pamqp.frame.marshal(Heartbeat(), 0)


def delivery(tag: int, body: bytes, *, channel: int = 2, size: int = 100) -> list[bytes]:
    """The frames of a delivery; a part of its body has at most `size` bytes."""
    properties = Basic.Properties(message_id=f"m{tag}", headers={"ce-type": "order"})
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    frames = [Basic.Deliver("consumer", tag, False, "exchange", "key"), ContentHeader(0, len(body), properties)]
    return [pamqp.frame.marshal(frame, channel) for frame in [*frames, *map(ContentBody, parts)]]


def tapped() -> tuple[asyncio.StreamReader, _Reader, list[Delivery]]:
    source, taken = asyncio.StreamReader(), list[Delivery]()
    return source, _Reader(source, taken.append), taken


@pytest.mark.parametrize("seed", range(5))
async def test_deliveries_are_taken_and_other_frames_left(seed: int) -> None:
    rng = random.Random(seed)
    source, reader, taken = tapped()
    reader._next_heartbeat = float("inf")
    others = [
        pamqp.frame.marshal(Queue.DeclareOk("orders", 7, 1), 1),
        pamqp.frame.marshal(Basic.Cancel("consumer"), 2),
        *delivery(1, b"", channel=3)[1:],  # content without a delivery, such as that of a get
        HEARTBEAT,
        pamqp.frame.marshal(Channel.CloseOk(), 1),
    ]
    bodies = [b"", b"{}", b"x" * 100, b"y" * 1000, b"\xce" * 250]
    frames: list[bytes] = []
    for tag, body in enumerate(bodies, 1):
        method, *content = delivery(tag, body)
        frames += [method, content[0], others[tag - 1], *content[1:]] if tag > 1 else [method, *content, others[0]]
    wire = b"".join(frames)
    while wire:
        cut = rng.randint(1, 400)
        source.feed_data(wire[:cut])
        wire = wire[cut:]
        await asyncio.sleep(0)
    source.feed_eof()
    left = b"".join(others)
    assert await reader.readexactly(len(left)) == left
    with pytest.raises(asyncio.IncompleteReadError):
        await reader.readexactly(1)
    assert reader.at_eof()
    assert [(item.tag, item.properties.message_id, item.body) for item in taken] == [
        (tag, f"m{tag}", body) for tag, body in enumerate(bodies, 1)
    ]
    assert taken[0].properties.headers == {"ce-type": "order"}


async def test_the_client_gets_heartbeats_while_deliveries_come() -> None:
    source, reader, taken = tapped()
    source.feed_data(b"".join(delivery(1, b"{}")))
    assert await reader.readexactly(len(HEARTBEAT)) == HEARTBEAT
    waiting = asyncio.ensure_future(reader.readexactly(1))
    source.feed_data(b"".join(delivery(2, b"{}")))
    await asyncio.sleep(0.01)
    assert not waiting.done(), "one is enough for a while"
    reader._next_heartbeat = 0.0
    source.feed_data(b"".join(delivery(3, b"{}")))
    assert await waiting == HEARTBEAT[:1]
    assert [item.tag for item in taken] == [1, 2, 3]
    assert rabbitmq_frames.HEARTBEAT_INTERVAL_S < 10


async def test_a_server_of_another_protocol_is_left_to_the_client() -> None:
    source, reader, _ = tapped()
    source.feed_data(b"AMQP\x00\x01\x00\x00")
    assert await reader.readexactly(8) == b"AMQP\x00\x01\x00\x00"
