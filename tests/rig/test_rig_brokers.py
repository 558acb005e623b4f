"""The brokers that the tests use: what they acknowledged is there after kill -9."""

from __future__ import annotations

from collections.abc import Iterator

import nats
import pytest
import redis.asyncio
from nats.js.api import StreamConfig

from rig import server
from rig.nats import Nats
from rig.server import Unavailable
from rig.valkey import Valkey


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    try:
        broker = Valkey().start()
    except Unavailable as why:
        pytest.skip(str(why))
    yield broker
    broker.close()


@pytest.fixture
def nats_server() -> Iterator[Nats]:
    try:
        broker = Nats(token="secret").start()
    except Unavailable as why:
        pytest.skip(str(why))
    yield broker
    broker.close()


async def test_valkey_keeps_what_it_answered(valkey: Valkey) -> None:
    async with redis.asyncio.Redis.from_url(valkey.url) as client:
        for number in range(100):
            await client.xadd("stream", {"n": str(number)})
    pid, url = valkey.pid, valkey.url
    valkey.kill9()
    assert valkey.pid is None
    valkey.start()
    assert (valkey.url, valkey.pid != pid) == (url, True)
    async with redis.asyncio.Redis.from_url(valkey.url) as client:
        assert await client.xlen("stream") == 100


async def test_nats_keeps_what_it_acknowledged(nats_server: Nats) -> None:
    client = await nats.connect(nats_server.url)
    await client.jetstream().add_stream(StreamConfig(name="S", subjects=["s.>"]))
    for number in range(100):
        await client.jetstream().publish("s.x", str(number).encode())
    await client.close()
    nats_server.kill9()
    nats_server.start()
    client = await nats.connect(nats_server.url)
    assert (await client.jetstream().stream_info("S")).state.messages == 100
    await client.close()


def test_a_closed_server_leaves_nothing(valkey: Valkey) -> None:
    pid, folder = valkey.pid, valkey.folder
    valkey.close()
    assert pid is not None
    assert not server.alive(pid)
    assert not folder.exists()
