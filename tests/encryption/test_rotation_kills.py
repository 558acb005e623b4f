"""Master keys change three times while tasks run, and processes are killed meanwhile: nothing is lost, and nothing is unreadable."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onward import Onward, State
from onward.core.encryption import new_master_key
from onward.core.sealed import CODECS
from onward.errors import DataErased, EncryptionKeyMissing
from rig.processes import Child
from tests.encryption import crew, faulty
from tests.kit import eventually, not_memory, sql

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
KEYS = 4
PEOPLE = 12
"""Subjects, each with its own data key."""
PERIOD_S = 0.03
MORE_ORDERS = 40
"""Orders that are submitted during each change: a slow machine does not get more of them."""
READ_ORDERS = 30
"""Orders that are read after each change: the first, some of which wait."""
HELD_BACK = 5
"""Each so many-th order gets its signal only at the end: it waits through changes of the keys."""


class Plant:
    """Workers in processes of their own and a client, with the same keys; a change of keys restarts them one by one."""

    def __init__(self, url: str, keys: str, artifacts: str) -> None:
        self._url, self._settings = url, {"artifacts": artifacts} if artifacts else {}
        self._env = {"ONWARD_ENCRYPTION_LABEL": crew.LABEL} | ({"ONWARD_ARTIFACTS": artifacts} if artifacts else {})
        self.keys = keys
        self.workers: list[Child] = []
        self.orders: dict[int, Any] = {}
        self._unsignalled: list[int] = []
        self._room = asyncio.Semaphore(3 * PEOPLE)
        self._using_client = asyncio.Lock()
        self._stopping = False
        self._feeding: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Plant:
        self.client = await self._connect()
        self.workers = [await self._worker() for _ in range(2)]
        self._feeding = asyncio.create_task(self._feed())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
        for worker in self.workers:
            worker.close()
        await self.client.__aexit__(None, None, None)

    async def _connect(self) -> Onward:
        return await crew.build(self._url, encryption_keys=self.keys, **self._settings).__aenter__()

    async def _worker(self) -> Child:
        child = Child.module("tests.encryption.crew", self._url, cwd=ROOT, env=self._environment())
        await asyncio.to_thread(child.wait_for, "ready")
        return child

    def _environment(self) -> dict[str, str]:
        return {**self._env, "ONWARD_ENCRYPTION_KEYS": self.keys, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}

    async def _feed(self) -> None:
        for number in itertools.count():
            await self._room.acquire()
            if self._stopping:
                return
            async with self._using_client:
                labels = {crew.LABEL: f"p{number % PEOPLE}"}
                self.orders[number] = await self.client.submit("order", number, labels=labels)
                if number % HELD_BACK:
                    await self.client.signal(self.orders[number].id, "go", f"go {number}")
                else:
                    self._unsignalled.append(number)
            await asyncio.sleep(PERIOD_S)

    def _order_more(self) -> None:
        for _ in range(MORE_ORDERS):
            self._room.release()

    async def give(self, keys: str) -> None:
        """Restart all processes one by one with these keys. One worker is killed, the other stops in order."""
        self.keys = keys
        self._order_more()
        for number, worker in enumerate(self.workers):
            if number == 0:
                await asyncio.to_thread(worker.kill9)
            else:
                worker.terminate()
                assert await asyncio.to_thread(worker.wait) == 0
            worker.close()
            self.workers[number] = await self._worker()
        new = await self._connect()
        async with self._using_client:
            before, self.client = self.client, new
        await before.__aexit__(None, None, None)

    async def begun(self) -> None:
        """Wait until each person has orders."""

        async def enough() -> bool:
            return len(self.orders) > 2 * PEOPLE

        await eventually(enough, 60)

    async def rotate(self, crash: str, fault: str) -> int:
        """`onward encryption rotate --data-keys`; its exit status."""
        self._order_more()
        env = {**self._environment(), **({"ONWARD_CRASH": crash} if crash else {})}
        arguments = ("encryption", "rotate", "--data-keys", "--db", self._url)
        program = ("tests.encryption.faulty", fault) if fault else ("onward",)
        with Child.module(*program, *arguments, cwd=ROOT, env=env) as child:
            return await asyncio.to_thread(child.wait)

    async def change_key(self, old: str, new: str, fault: str = "") -> None:
        """Change the master key, with a rotation that is killed twice and goes on, with a fault that is planted in it."""
        name = new.partition("=")[0]
        await self.give(f"{old},{new}")
        await self.give(f"{new},{old}")
        for wrapped in (3, 5):  # it is killed when it has wrapped so many keys, and goes on
            assert await self.rotate(f"rotate.wrapped:{wrapped}", fault) == -9
            masters = await self.client.store.data_keys.masters()
            assert masters[name] >= wrapped, "what was wrapped stays so"
            assert len(masters) == 2, "it was killed in the middle"
        assert await self.rotate("", fault) == 0
        assert set(await self.client.store.data_keys.masters()) == {name}, "keys of an old master key are left"
        await self.give(new)
        await self.check_readable()

    async def check_readable(self) -> None:
        """All orders so far can be read, also those that wait."""
        for number, order in list(self.orders.items())[:READ_ORDERS]:
            assert (await self.client.get(order.id)).input == number
            for record in await self.client.service.journal(order.id):
                assert record.data[:1] not in CODECS, record

    async def finish(self) -> None:
        """Stop the feed, signal the orders that wait, and wait for all of them."""
        assert self._feeding is not None
        self._stopping = True
        self._room.release()
        await self._feeding
        for number in self._unsignalled:
            await self.client.signal(self.orders[number].id, "go", f"go {number}")
        for number, order in self.orders.items():
            result = await self.client.service.result(order.id, timeout=60)
            assert result[:-1] == crew.expected(number), number


@contextlib.asynccontextmanager
async def plant(url: str, keys: str, artifacts: str) -> AsyncIterator[Plant]:
    async with Plant(url, keys, artifacts) as running:
        yield running


def master_keys() -> list[str]:
    return [new_master_key(f"k{number}") for number in range(1, KEYS + 1)]


@not_memory
@pytest.mark.parametrize("shelf", ["artifacts in the database", "artifacts in a folder"])
async def test_three_changes_of_the_master_key_under_load_lose_nothing(
    url: str, shelf: str, tmp_path: Path, print_proof: Any
) -> None:
    keys = master_keys()
    artifacts = str(tmp_path / "artifacts") if shelf.endswith("folder") else ""
    async with plant(url, keys[0], artifacts) as running:
        await running.begun()
        for old, new in itertools.pairwise(keys):
            await running.change_key(old, new)
        await running.finish()
        orders = len(running.orders)
    await _check_all(url, keys, artifacts, [order.id for order in running.orders.values()])
    print_proof(shelf, f"{orders} orders", f"{len(keys) - 1} changes of the key", "no order lost or unreadable")


@not_memory
@pytest.mark.parametrize(
    ("fault", "finding"),
    [(faulty.SKIPS, "keys of an old master key are left"), (faulty.DESTROYS, "erased|keys of an old")],
)
async def test_it_sees_a_fault_in_the_rotation(url: str, fault: str, finding: str) -> None:
    old, new, *_ = master_keys()
    async with plant(url, old, "") as running:
        await running.begun()
        with pytest.raises((AssertionError, DataErased), match=finding):
            await running.change_key(old, new, fault)


async def _check_all(url: str, keys: list[str], artifacts: str, task_ids: list[str]) -> None:
    settings = {"artifacts": artifacts} if artifacts else {}
    async with crew.build(url, encryption_keys=keys[-1], encryption_plain="refuse", **settings) as app:
        for number, task_id in enumerate(task_ids):
            task = await app.get(task_id)
            assert (task.state, task.input, task.left_out) == (State.COMPLETED, number, ())
            for record in await app.service.journal(task_id):
                assert record.value is not None
            for message in await app.store.inbox(task_id):
                assert message.data[:1] not in CODECS, message
            data = await app.service.artifacts.read(task_id, task.result[-1])
            assert data.decode() == crew.artifact_of(number)
            for child in await app.store.listing.offspring([task_id], 10):
                assert (await app.get(child.id)).result == f"WORD {number}"
        assert await app.store.health.census() == []
        ids = {row[0] for row in await sql(app.store, "SELECT id FROM onward_tasks")}
        assert len(ids) == 2 * len(task_ids), "an order and its child, each once"
        await app.store.data_keys.check()
    async with crew.build(url, encryption_keys=",".join(keys[:-1])) as app:
        with pytest.raises(EncryptionKeyMissing):
            await app.store.data_keys.check()
