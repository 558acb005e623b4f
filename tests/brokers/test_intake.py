"""Messages become tasks: one each, however often they come, and dead letters where they cannot."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from onward import Onward
from onward.brokers import Message
from onward.errors import BadSetting, UsageError
from tests.brokers.producers import Producer, cloud_event, json_bodies
from tests.kit import eventually, not_memory


def make_app(url: str, producer: Producer, **settings: Any) -> Onward:
    app = Onward(url, brokers={"shop": producer.url}, poll_s=0.1, **settings)

    @app.task
    async def ship(ctx: Any, n: int) -> int:
        return n

    return app


async def inputs(app: Onward) -> list[int]:
    """The inputs of all tasks, in order."""
    numbers: list[int] = []
    cursor: str | None = None
    while True:
        tasks, cursor = await app.list(limit=1000, cursor=cursor)
        numbers += [task.input["n"] for task in tasks]
        if cursor is None:
            return sorted(numbers)


async def drained(app: Onward, producer: Producer) -> None:
    """Returns when the broker has nothing left that was not acknowledged."""

    async def nothing_left() -> bool:
        return await producer.unacknowledged() == 0

    await eventually(nothing_left, 30)


@not_memory
async def test_each_message_is_one_task(url: str, producer: Producer) -> None:
    app = make_app(url, producer)
    app.intake("orders", from_=f"shop/{producer.place}", task="ship")
    await producer.send(json_bodies(450))
    async with app, app.intakes():
        await drained(app, producer)
        assert await inputs(app) == list(range(450))
        task = (await app.list(limit=1))[0][0]
        assert task.key is not None
        assert task.key.startswith(f"orders:{producer.identity}:")


@not_memory
async def test_an_event_that_is_sent_twice_is_one_task(url: str, producer: Producer) -> None:
    app = make_app(url, producer)
    app.intake("orders", from_=f"shop/{producer.place}", task={"order.created": "ship"})
    await producer.send([cloud_event(n % 10) for n in range(40)])
    async with app, app.intakes():
        await drained(app, producer)
        assert await inputs(app) == list(range(10))
        await producer.send([cloud_event(n % 20) for n in range(40)])
        await drained(app, producer)
        assert await inputs(app) == list(range(20))


@not_memory
async def test_poison_becomes_dead_letters_with_the_reason(url: str, producer: Producer) -> None:
    app = make_app(url, producer)
    app.intake("orders", from_=f"shop/{producer.place}", task={"order.created": "ship"})
    poison = [b"{no json", cloud_event(1, "order.unknown"), b'{"n": 1, "n": 2}', b"\xff\xfe"]
    wrong = json.dumps({**json.loads(cloud_event(2)), "data": {"n": "many"}}).encode()
    await producer.send([cloud_event(100), *poison, wrong, cloud_event(101)])
    async with app, app.intakes():
        await drained(app, producer)
        assert await inputs(app) == [100, 101]
        letters = await app.store.intakes.letters(intake="orders", limit=100)
        reasons = sorted(letter.reason for letter in letters)
        assert len(reasons) == 5
        assert any("order.unknown" in reason for reason in reasons)
        assert any("n" in reason and "ship" in reason for reason in reasons)
        assert any("not JSON" in reason for reason in reasons)


@not_memory
async def test_a_redrive_takes_the_letters_after_the_fix(url: str, producer: Producer) -> None:
    app = make_app(url, producer)
    app.intake("orders", from_=f"shop/{producer.place}", task={"order.created": "ship"})
    await producer.send([cloud_event(n, "order.created" if n % 10 else "order.late") for n in range(50)])
    async with app, app.intakes():
        await drained(app, producer)
        assert len(await inputs(app)) == 45
    app = make_app(url, producer)
    app.intake("orders", from_=f"shop/{producer.place}", task={"order.created": "ship", "order.late": "ship"})
    async with app, app.intakes():
        assert await app.dead_letters.redrive(intake="orders") == 5

        async def all_there() -> bool:
            return len(await inputs(app)) == 50 and not await app.store.intakes.letters(intake="orders", limit=10)

        await eventually(all_there, 20)


@not_memory
async def test_a_message_that_was_taken_is_no_dead_letter_after_a_deploy(url: str, producer: Producer) -> None:
    """The first deployment committed it and died before it acknowledged; the second does not take its type any more."""
    app = make_app(url, producer)
    app.intake("orders", from_=f"shop/{producer.place}", task={"*": "ship"})
    await producer.send([cloud_event(1)])
    async with app, app.intakes():
        await drained(app, producer)
    await producer.send([cloud_event(1)])
    app = make_app(url, producer)
    app.intake("orders", from_=f"shop/{producer.place}", task={"order.paid": "ship"})
    async with app, app.intakes():
        await drained(app, producer)
        assert await app.store.intakes.letters(intake="orders", limit=10) == []


@not_memory
async def test_a_full_queue_stops_the_fetching(url: str, producer: Producer) -> None:
    app = make_app(url, producer, queue_limit=30)
    app.intake("orders", from_=f"shop/{producer.place}", task="ship")
    await producer.send(json_bodies(300))
    async with app:
        async with app.intakes():
            await eventually(lambda: _counts(app, 30), 20)
            await asyncio.sleep(0.5)
            assert len(await inputs(app)) <= 31
        async with app.worker():
            await drained(app, producer)
            assert await inputs(app) == list(range(300))
            assert await app.store.intakes.letters(limit=10) == []


async def _counts(app: Onward, least: int) -> bool:
    return len(await inputs(app)) >= least


@not_memory
async def test_a_function_gets_each_message_and_is_called_again_when_it_raises(url: str, producer: Producer) -> None:
    app = make_app(url, producer)
    calls: list[int] = []

    @app.intake("mail", from_=f"shop/{producer.place}", attempts=3)
    async def mail(message: Message) -> None:
        number = message.data["n"]
        calls.append(number)
        if number == 3 and calls.count(3) < 3:
            raise RuntimeError("not yet")
        if number == 4:
            raise ValueError("never")

    await producer.send(json_bodies(6))
    async with app, app.intakes():
        await drained(app, producer)
        assert sorted(calls) == [0, 1, 2, 3, 3, 3, 4, 4, 4, 5]
        (letter,) = await app.store.intakes.letters(intake="mail", limit=10)
        assert letter.reason == "ValueError: never"


@not_memory
async def test_messages_wait_for_a_handler_that_no_worker_has_yet(url: str, producer: Producer) -> None:
    app = Onward(url, brokers={"shop": producer.url}, poll_s=0.1)
    app.intake("orders", from_=f"shop/{producer.place}", task="ship")
    await producer.send(json_bodies(3))
    async with app, app.intakes():

        async def waits() -> bool:
            reports = await app.store.intakes.reports(["orders"])
            return any("ship" in report.detail and report.state == "waiting" for report in reports)

        await eventually(waits, 20)
        other = make_app(url, producer)
        async with other.worker():
            await drained(app, producer)
            assert await inputs(app) == [0, 1, 2]


async def test_declarations_are_checked() -> None:
    app = Onward("sqlite://:memory:", brokers={"shop": "redis://127.0.0.1:1"})
    with pytest.raises(BadSetting, match="BROKER/PLACE"):
        app.intake("orders", from_="shop", task="ship")
    with pytest.raises(BadSetting, match="ONWARD_BROKER_MALL"):
        app.intake("orders", from_="mall/x", task="ship")
    with pytest.raises(UsageError, match="name of an intake"):
        app.intake("or:ders", from_="shop/x", task="ship")
    app.intake("orders", from_="shop/x", task="ship")
    with pytest.raises(UsageError, match="two intakes"):
        app.intake("orders", from_="shop/x", task="ship")
