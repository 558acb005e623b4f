"""Live text: reported as it comes, a few times a second, and withdrawn when its attempt failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward import Onward
from onward.agent.model import ModelUnavailable, Reply, Request
from onward.core import record as r
from onward.testing import crashes, drain
from tests.kit import Gate, Lab, eventually

WORDS = [f"word{number} " for number in range(100)]


class Slow:
    """A model that takes a tenth of a second for each word, and breaks off `breaks` times."""

    name = "slow"

    def __init__(self, clock: Any, breaks: int = 0, words: int = 100) -> None:
        self.clock, self.breaks, self.words = clock, breaks, words

    async def ask(self, request: Request, emit: Any) -> Reply:
        for number, word in enumerate(WORDS[: self.words]):
            await self.clock.sleep(0.1)
            emit(word)
            if self.breaks and number == 19:
                self.breaks -= 1
                raise ModelUnavailable("slow", "it broke off")
        return Reply("".join(WORDS[: self.words]))


async def live_pieces(app: Onward, task_id: str) -> list[dict[str, Any]]:
    """The reported pieces of a task's live text."""
    records = await app.service.journal(task_id, limit=1000)
    return [record.value for record in records if record.kind == r.PROGRESS and "text" in record.value]


async def test_text_is_reported_a_few_times_a_second(lab: Lab) -> None:
    lab.app.agent("slow", model=Slow(lab.clock))
    task = await lab.run("slow", "x")
    pieces = await live_pieces(lab.app, task.task_id)
    assert 15 <= len(pieces) <= 21, "ten seconds of a hundred words"
    assert len({(piece["turn"], piece["attempt"]) for piece in pieces}) == 1
    text = "".join(piece["text"] for piece in pieces)
    assert task.result.startswith(text)
    assert len(task.result) - len(text) < 60


async def test_a_quick_reply_has_no_live_text(lab: Lab) -> None:
    lab.app.agent("quick", model=Slow(lab.clock, words=4))
    assert await live_pieces(lab.app, (await lab.run("quick", "x")).task_id) == []


async def test_text_of_an_attempt_that_failed_is_withdrawn(lab: Lab) -> None:
    lab.app.agent("slow", model=Slow(lab.clock, breaks=1))
    task = await lab.run("slow", "x")
    pieces = await live_pieces(lab.app, task.task_id)
    first = [piece for piece in pieces if piece["attempt"] == pieces[0]["attempt"]]
    assert [piece.get("withdrawn", False) for piece in first] == [False] * (len(first) - 1) + [True]
    assert first[-1]["text"] == ""
    assert pieces[: len(first)] == first
    rest = "".join(piece["text"] for piece in pieces[len(first) :])
    assert task.result.startswith(rest)
    assert len(first) > 2


async def test_live_text_that_cannot_be_stored_is_cleaned(lab: Lab) -> None:
    class Half:
        name = "half"

        async def ask(self, request: Request, emit: Any) -> Reply:
            await lab.clock.sleep(1)
            emit("half a \ud83d")
            return Reply("fine")

    lab.app.agent("half", model=Half())
    task = await lab.run("half", "x")
    assert task.result == "fine"
    assert [piece["text"] for piece in await live_pieces(lab.app, task.task_id)] == ["half a ?"]


@pytest.mark.slow
async def test_a_replay_reports_nothing_twice() -> None:
    points = 0
    async for app in crashes():
        handle = await app.submit(app.agent("slow", model=Slow(app.clock, words=25)), "x")
        await drain(app)
        assert await handle.result(timeout=1) == "".join(WORDS[:25])
        shifts: dict[int, list[str]] = {}
        numbers: dict[int, int] = {}
        for record in await app.service.journal(handle.id, limit=1000):
            if record.kind == r.PROGRESS and "text" in record.value:
                shifts.setdefault(record.shift, []).append(record.value["text"])
                assert numbers.setdefault(record.value["attempt"], record.shift) == record.shift, (
                    "another attempt had this number"
                )
        for pieces in shifts.values():
            assert "".join(WORDS).startswith("".join(pieces)), app.killed_at
        assert list(numbers) == sorted(numbers), "numbers grow over the whole task"
        points += 1
    assert points > 5


async def test_a_watcher_sees_live_text_before_the_reply_is_complete(app: Onward) -> None:
    gate = Gate()

    class Held:
        name = "held"

        async def ask(self, request: Request, emit: Any) -> Reply:
            await asyncio.sleep(0.6)
            emit("the first words")
            await gate()
            return Reply("the first words and the last")

    held = app.agent("held", model=Held())
    async with app.worker():
        handle = await app.submit(held, "x")
        (piece,) = await eventually(lambda: live_pieces(app, handle.id))
        attempt = piece.pop("attempt")
        assert piece == {"message": "", "step": 1, "total": 0, "turn": 1, "text": "the first words"}
        assert attempt == next(
            record.seq for record in await app.service.journal(handle.id) if record.kind == r.PROGRESS
        )
        gate.opened.set()
        assert await handle.result(timeout=60) == "the first words and the last"
