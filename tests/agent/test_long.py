"""A conversation of 300 turns with outputs of 100 kB: the stored bytes grow with the conversation, and going on at turn 300 reads as
much as at turn 60. (How long that takes, `python -m bench --only W7` measures.)"""

from __future__ import annotations

import gc
import itertools
import random
import tracemalloc
from typing import Any

import pytest

from onward import Onward
from onward.agent.conversation import Conversation
from onward.agent.loop import CHECKPOINT_EVERY_TURNS, CONTEXT_BYTES, STATE_BYTES
from onward.agent.model import Reply, Request, ToolCall
from onward.agent.tools import tool
from onward.core import record as r
from tests.kit import eventually, not_memory, only_memory, sql

pytestmark = pytest.mark.slow

TURNS = 300
OUTPUT_BYTES = 100_000
ASKS = (3 * CHECKPOINT_EVERY_TURNS - 2, TURNS - 2)
"""Turns in which a person is asked, and the task leaves memory: each as far from its last checkpoint as can be."""

MARKS = (1, TURNS // 3, 2 * TURNS // 3, TURNS)
STORED = (
    "SELECT coalesce((SELECT sum(length(data)) FROM onward_journal), 0) + "
    "coalesce((SELECT sum(length(data)) FROM onward_contents), 0)"
)


class Reads:
    """Counts the reads from the store: records, and bytes of records and contents."""

    def __init__(self, app: Onward) -> None:
        self.records = self.bytes = 0
        store: Any = app.store
        journal, contents = store.journal, store.contents

        async def count_journal(*args: Any, **options: Any) -> Any:
            records = await journal(*args, **options)
            self.records += len(records)
            self.bytes += sum(len(record.data) for record in records)
            return records

        async def count_contents(*args: Any, **options: Any) -> Any:
            values = await contents(*args, **options)
            self.bytes += sum(map(len, values.values()))
            return values

        store.journal, store.contents = count_journal, count_contents

    def reset(self) -> None:
        self.records = self.bytes = 0


class Talker:
    """A model that looks once more in every turn, and measures."""

    name = "talker"

    def __init__(self, app: Onward) -> None:
        self._app, self._reads = app, Reads(app)
        self.turn = 0
        self.stored: list[int] = []
        self.memory: dict[int, int] = {}
        self.resumed: list[tuple[int, int]] = []
        """Records and bytes read to go on after a wait, the messages of the next call included."""
        self.largest = 0
        """Bytes of the largest request."""

    def forget(self) -> None:
        self._reads.reset()

    async def ask(self, request: Request, emit: Any) -> Reply:
        if self.turn in ASKS:
            self.resumed.append((self._reads.records, self._reads.bytes))
        self.turn += 1
        self.largest = max(self.largest, sum(len(str(message)) for message in request.conversation))
        if self.turn in MARKS:
            ((stored,),) = await sql(self._app.store, STORED)
            self.stored.append(int(stored))
            gc.collect()
            self.memory[self.turn] = tracemalloc.get_traced_memory()[0]
        if self.turn in ASKS:
            return Reply("", (ToolCall(f"call_{self.turn}", "ask_user", '{"question":"Shall I go on?"}'),))
        if self.turn > TURNS:
            return Reply("enough")
        return Reply("", (ToolCall(f"call_{self.turn}", "dump", f'{{"turn":{self.turn}}}'),))


@tool
async def dump(turn: int) -> str:
    """100 kB that cannot be made smaller."""
    rng = random.Random(turn)
    return "\n".join(rng.randbytes(50).hex() for _ in range(OUTPUT_BYTES // 101))


async def talk(app: Onward) -> tuple[Talker, list[r.Record]]:
    talker = Talker(app)
    app.agent("talk", model=talker, tools=[dump], compact=False)
    tracemalloc.start()
    try:
        async with app.worker():
            handle = await app.submit("talk", "Look around, for a long time.")
            for _ in ASKS:
                ask = (await eventually(app.asks, 600))[0]
                talker.forget()
                await app.answer(ask.id, "yes")
            assert await handle.result(timeout=120) == "enough"
    finally:
        tracemalloc.stop()
    return talker, await app.service.journal(handle.id, 0, 10_000)


def judge(talker: Talker, records: list[r.Record]) -> dict[str, str]:
    """The checks that fail, by name."""
    first, second, third = (after - before for before, after in itertools.pairwise(talker.stored))
    (early, early_bytes), (late, late_bytes) = talker.resumed
    grown = talker.memory[TURNS] - talker.memory[TURNS // 3]
    room = CONTEXT_BYTES + STATE_BYTES
    turns = sum(record.kind == r.CHECKPOINT for record in records) * CHECKPOINT_EVERY_TURNS
    checks = {
        "checkpoints": (turns <= TURNS - CHECKPOINT_EVERY_TURNS, f"they stand for {turns} turns"),
        "bytes": (
            third > 1.03 * second or third > 1.1 * first or first > 1.2 * OUTPUT_BYTES * TURNS / 3,
            f"{first:,}, {second:,} and {third:,} were stored in three parts of equal length",
        ),
        "request": (talker.largest > 1.5 * room, f"{talker.largest:,} bytes in one request"),
        "records": (
            max(early, late) > 12 * CHECKPOINT_EVERY_TURNS,
            f"{late} records were read at turn {TURNS}, {early} at {ASKS[0]}",
        ),
        "read": (
            late_bytes > 1.5 * early_bytes or late_bytes > 5 * room,
            f"{late_bytes:,} bytes were read to go on at turn {TURNS}, {early_bytes:,} at {ASKS[0]}",
        ),
        "memory": (grown > 20 * OUTPUT_BYTES, f"{grown:,} bytes more in memory at turn {TURNS} than at {TURNS // 3}"),
    }
    print(*(text for _, text in checks.values()), sep="\n")
    return {name: text for name, (wrong, text) in checks.items() if wrong}


@not_memory
async def test_the_cost_of_a_long_conversation_grows_with_its_length(
    app: Onward, request: pytest.FixtureRequest
) -> None:
    if app.store.where.startswith("PostgreSQL"):
        request.getfixturevalue("at_length")
    assert judge(*await talk(app)) == {}


# ── each of these checks can fail ────────────────────────────────────────────────────────────────────────────────────


def show_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Conversation.shown
    monkeypatch.setattr(Conversation, "shown", lambda self, most, *rest: shown(self, 10**9, *rest))


def read_from_the_start(store: Any) -> None:
    journal = store.journal

    async def whole(task_id: str, after: int | None = 0, *bounds: int) -> Any:
        return await journal(task_id, after or 0, *bounds)

    store.journal = whole


def leak(store: Any, held: list[Any]) -> None:
    save = store.save

    async def saved(worker: str, batch: Any) -> Any:
        held.append(batch)
        return await save(worker, batch)

    store.save = saved


@only_memory
async def test_planted_faults_are_caught(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = []
    show_everything(monkeypatch)
    read_from_the_start(app.store)
    leak(app.store, held)
    assert set(judge(*await talk(app))) == {"bytes", "request", "records", "read", "memory"}
