"""The pool of PostgreSQL connections: never more than the limit, none lost, and no broken connection is lent again."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from onward.store.postgres import pool
from onward.store.postgres.pool import Pool
from tests.kit import eventually


class Line:
    """A connection with the attributes that a pool uses."""

    def __init__(self) -> None:
        self.closed = self.busy = False

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return self.busy

    def terminate(self) -> None:
        self.closed = True

    async def close(self, timeout: float) -> None:
        self.closed = True


class Exchange:
    """Makes lines, and counts the open ones."""

    def __init__(self, most: int = 3) -> None:
        self.made: list[Line] = []
        self.down = False
        self.pool = Pool(self.connect, most)

    async def connect(self) -> Line:
        await asyncio.sleep(0)
        if self.down:
            raise ConnectionRefusedError
        self.made.append(Line())
        return self.made[-1]

    @property
    def open(self) -> int:
        return sum(not line.closed for line in self.made)


async def test_a_connection_is_lent_again() -> None:
    exchange = Exchange()
    for _ in range(5):
        line = await exchange.pool.borrow()
        exchange.pool.give_back(line, sound=True)
    assert len(exchange.made) == 1


async def test_never_more_than_agreed_and_the_rest_wait_in_line() -> None:
    exchange = Exchange(3)
    out = [await exchange.pool.borrow() for _ in range(3)]
    waiting = [asyncio.ensure_future(exchange.pool.borrow()) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert not any(w.done() for w in waiting)
    for line in out:
        exchange.pool.give_back(line, sound=True)
    got = await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert set(got) == set(out)
    assert len(exchange.made) == 3


@pytest.mark.parametrize("trouble", ["unsound", "closed", "in a transaction"])
async def test_a_connection_that_comes_back_broken_is_replaced(trouble: str) -> None:
    exchange = Exchange(1)
    line: Any = await exchange.pool.borrow()
    line.closed, line.busy = trouble == "closed", trouble == "in a transaction"
    waiting = asyncio.ensure_future(exchange.pool.borrow())
    await asyncio.sleep(0)
    exchange.pool.give_back(line, sound=trouble != "unsound")
    fresh = await asyncio.wait_for(waiting, 60)
    assert fresh is not line
    assert line.closed
    assert exchange.open == 1


async def test_a_connection_that_broke_while_idle_is_not_lent() -> None:
    exchange = Exchange(1)
    line = await exchange.pool.borrow()
    exchange.pool.give_back(line, sound=True)
    line.closed = True
    assert await asyncio.wait_for(exchange.pool.borrow(), 60) is not line


async def test_a_server_that_is_down_costs_no_place() -> None:
    exchange = Exchange(2)
    exchange.down = True
    failed = await asyncio.gather(*[exchange.pool.borrow() for _ in range(10)], return_exceptions=True)
    assert all(isinstance(error, ConnectionRefusedError) for error in failed)
    exchange.down = False
    assert len([await asyncio.wait_for(exchange.pool.borrow(), 60) for _ in range(2)]) == 2


async def test_a_cancelled_borrower_takes_no_connection() -> None:
    exchange = Exchange(1)
    line = await exchange.pool.borrow()
    waiting = [asyncio.ensure_future(exchange.pool.borrow()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    exchange.pool.give_back(line, sound=True)
    waiting[1].cancel()  # in the very moment in which its turn has come
    assert await asyncio.wait_for(waiting[2], 60) is line


async def test_many_borrowers_in_all_kinds_of_trouble() -> None:
    exchange, rng = Exchange(4), random.Random(2)

    async def borrower() -> None:
        for _ in range(20):
            try:
                line = await asyncio.wait_for(exchange.pool.borrow(), rng.choice([0.0005, 1, 1, 1]))
            except (TimeoutError, ConnectionRefusedError):
                continue
            assert exchange.open <= 4
            await asyncio.sleep(rng.random() * 0.001)
            exchange.down = rng.random() < 0.1
            exchange.pool.give_back(line, sound=rng.random() < 0.9)

    await asyncio.wait_for(asyncio.gather(*[borrower() for _ in range(20)]), 60)
    exchange.down = False
    lent = [await asyncio.wait_for(exchange.pool.borrow(), 60) for _ in range(4)]
    assert len(set(lent)) == 4, "no place was lost"


async def test_after_closing_nothing_stays_open() -> None:
    exchange = Exchange(3)
    out, idle = await exchange.pool.borrow(), await exchange.pool.borrow()
    exchange.pool.give_back(idle, sound=True)
    await exchange.pool.close()
    assert exchange.open == 1
    exchange.pool.give_back(out, sound=True)
    assert exchange.open == 0


async def test_connections_that_are_idle_for_long_are_closed_but_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_S", 0.02)
    exchange = Exchange()
    lines = [await exchange.pool.borrow() for _ in range(3)]
    for line in lines:
        exchange.pool.give_back(line, sound=True)
    assert exchange.open == 3

    async def one_left() -> bool:
        return exchange.open == 1

    await eventually(one_left)
    again = [await exchange.pool.borrow() for _ in range(3)]
    assert lines[-1] in again, "the one that was used last is kept"
    assert exchange.open == 3, "and as many as before can be made"
    for line in again:
        exchange.pool.give_back(line, sound=True)
    await exchange.pool.close()
    assert exchange.open == 0
