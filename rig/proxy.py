"""A TCP proxy in front of PostgreSQL (or PgBouncer) that loses connections, answers and time.

    with Proxy("127.0.0.1", postgres.port) as proxy:
        url = proxy.url_for(postgres.url)
        proxy.cut_after_commit(matching="INSERT INTO orders")

The fault that matters most is the last one: the server has committed, and the client never learns it. If it tries again
it does its work twice, and if it does not it may leave it undone, unless it can find out what happened.

`HttpProxy` does the same to a server that speaks HTTP, or anything else that asks and answers.

The proxy runs in a thread and a loop of its own, so it goes on while a test blocks, and its methods may be called from
anywhere: they return when the fault is in place.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from rig.base import StartStop
from rig.wire import Conversation, Statement, Transaction

WRITES = {"INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "COMMIT"}
T = TypeVar("T")


@dataclass(frozen=True)
class _Arm:
    """Which committed transactions lose their answer: those with a statement like this."""

    left: int
    matching: str | None
    any: bool

    def means(self, statement: Statement) -> bool:
        return (self.any or statement.verb in WRITES) and (self.matching is None or self.matching in statement.sql)


class Proxy(StartStop):
    """Listens on a free port of 127.0.0.1 between start() and close().

    `delay` is in seconds, for each direction, and `rate` in bytes a second for all connections and both directions together (0: as
    fast as it goes); both may be changed at any time. `fired` counts the answers lost.
    """

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self.upstream = (upstream_host, upstream_port)
        self.port = 0
        self.delay = 0.0
        self.rate = 0.0
        self._free_at = 0.0
        self.fired = 0
        self._arm: _Arm | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rig-proxy", daemon=True)
        self._links: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    def url_for(self, url: str) -> str:
        """The same URL, through the proxy."""
        parts = urlsplit(url)
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        return urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self.port}"))

    @property
    def connections(self) -> int:
        return len(self._links)

    def cut(self) -> None:
        """Drops all connections now; new ones are served."""
        self._run(self._cut())

    def pause(self) -> None:
        """Nothing gets through any more, in either direction; connections stay open, and new ones can be opened."""
        self._do(self._flowing.clear)

    def resume(self) -> None:
        """All that was held back gets through."""
        self._do(self._flowing.set)

    def cut_after_commit(self, n: int = 1, *, matching: str | None = None, any: bool = False) -> None:  # noqa: A002
        """The next `n` transactions that commit lose their answer and their connection. Replaces what was armed before.

        Meant are transactions, or single statements, that contain a write: the server calls it INSERT, UPDATE, DELETE,
        MERGE, COPY or COMMIT, and the SQL that the client sent for it contains `matching`. A `WITH … INSERT … SELECT`
        is a SELECT to the server; `any` takes every statement for a write (best with `matching`, since drivers have
        questions of their own). Rows may still arrive; that the statement is done does not.
        """
        self._do(lambda: setattr(self, "_arm", _Arm(n, matching, any)))

    def disarm(self) -> None:
        self._do(lambda: setattr(self, "_arm", None))

    def start(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self._do(self._server.close)
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def _do(self, action: Callable[[], object]) -> None:
        async def work() -> None:
            action()

        self._run(work())

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _serve(self, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        writers = [client]
        try:
            await self._flowing.wait()
            answers, server = await asyncio.open_connection(*self.upstream)
            writers.append(server)
            if not await self._converse(requests, client, answers, server):
                raise ConnectionAbortedError
            for writer in writers:
                writer.close()
        except (OSError, asyncio.CancelledError):
            for writer in writers:
                writer.transport.abort()
        finally:
            self._links.discard(link)

    async def _converse(
        self,
        requests: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> bool:
        """Goes on until one of the two leaves (True) or an answer gets lost (False)."""
        conversation = Conversation(self._wants, self._claim)

        async def hear_client() -> bool:
            async for data in self._late(requests):
                to_server, to_client = conversation.client_says(data)
                client.write(to_client)
                server.write(to_server)
                await server.drain()
            return True

        async def hear_server() -> bool:
            async for data in self._late(answers):
                to_client, is_lost = conversation.server_says(data)
                client.write(to_client)
                if is_lost:
                    return False
                await client.drain()
            return True

        return await self._both(hear_client(), hear_server())

    async def _both(self, *hearing: Coroutine[Any, Any, bool]) -> bool:
        ears = [asyncio.create_task(side) for side in hearing]
        try:
            done, _ = await asyncio.wait(ears, return_when=asyncio.FIRST_COMPLETED)
            return all([await ear for ear in done])
        finally:
            for ear in ears:
                ear.cancel()
            await asyncio.gather(*ears, return_exceptions=True)

    async def _late(self, source: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """Yields the bytes of the source, `delay` later and not while paused. Many pieces can be under way at once: a delay costs
        time and no throughput."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1000)

        async def receive() -> None:
            data = b"-"
            while data:
                try:
                    data = await source.read(65536)
                except OSError:
                    data = b""
                await under_way.put((self._loop.time() + self.delay, data))

        receiver = asyncio.create_task(receive())
        try:
            while True:
                due, data = await under_way.get()
                if (wait := due - self._loop.time()) > 0:
                    await asyncio.sleep(wait)
                await self._flowing.wait()
                if self.rate and data:
                    await self._cross(len(data))
                if not data:
                    return
                yield data
        finally:
            receiver.cancel()

    async def _cross(self, size: int) -> None:
        """Waits until the pieces before this one have crossed: all connections share one wire."""
        self._free_at = max(self._free_at, self._loop.time()) + size / self.rate
        await asyncio.sleep(self._free_at - self._loop.time())

    def _wants(self, transaction: Transaction) -> bool:
        arm = self._arm
        return arm is not None and any(arm.means(statement) for statement in transaction)

    def _claim(self, transaction: Transaction) -> bool:
        if self._arm is None or not self._wants(transaction):
            return False
        self._arm = replace(self._arm, left=self._arm.left - 1) if self._arm.left > 1 else None
        self.fired += 1
        return True


class HttpProxy(Proxy):
    """A proxy in front of an HTTP server. It loses the answer to a request that the server has carried out."""

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        super().__init__(upstream_host, upstream_port)
        self._lose: tuple[bytes, int] = (b"", 0)

    def cut_after_request(self, matching: bytes, n: int = 1) -> None:
        """The next `n` requests that contain these bytes are forwarded; their answers are lost, with the connection, once the
        server has begun to give them. Replaces what was armed before."""
        self._do(lambda: setattr(self, "_lose", (matching, n)))

    async def _converse(
        self,
        requests: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> bool:
        doomed = False

        async def hear_client() -> bool:
            nonlocal doomed
            async for data in self._late(requests):
                matching, left = self._lose
                if left and matching in data:
                    self._lose, doomed = (matching, left - 1), True
                server.write(data)
                await server.drain()
            return True

        async def hear_server() -> bool:
            async for data in self._late(answers):
                if doomed:
                    self.fired += 1
                    return False
                client.write(data)
                await client.drain()
            return True

        return await self._both(hear_client(), hear_server())
