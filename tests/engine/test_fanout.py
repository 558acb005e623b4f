"""One parent and very many children: one message for each, and a cost that grows as their number does."""

from __future__ import annotations

import collections
import resource
import time
from collections.abc import Iterator
from typing import Any

import apsw
import pytest

from onward import Onward
from onward.core import record as r
from onward.engine.shift.mail import Mail
from onward.engine.shift.replay import Replay
from onward.engine.shift.waits import INBOX_PAGE_SIZE
from onward.store.sqlite import execute as sqlite_run
from onward.store.statements import Statement
from tests.engine.test_engine_parts import journal as journal_of
from tests.kit import not_memory

MAX_GROWTH, MAX_GROWTH_OF_FEW = 1.2, 1.6
"""Ten times the children may cost twelve times as much; with few children, the fixed work of a worker counts more."""

INSTRUCTIONS_PER_TICK = 1_000
"""Instructions of SQLite's virtual machine between two counts."""


class Counted:
    """Counts the load of the database: calls of verbs, and on SQLite the instructions of its virtual machine."""

    def __init__(self) -> None:
        self.verbs: collections.Counter[str] = collections.Counter()
        self.steps = 0

    def tick(self) -> bool:
        self.steps += INSTRUCTIONS_PER_TICK
        return False

    def over(self, store: Any) -> None:
        """Count the reads of a parent."""
        read_inbox, read_journal = store.inbox, store.journal

        async def inbox(*args: Any, **more: Any) -> Any:
            self.verbs["inbox"] += 1
            return await read_inbox(*args, **more)

        async def journal(*args: Any, **more: Any) -> Any:
            page = await read_journal(*args, **more)
            self.verbs["records read"] += len(page)
            return page

        store.inbox, store.journal = inbox, journal


@pytest.fixture
def counted() -> Iterator[Counted]:
    counted = Counted()

    def hook(connection: apsw.Connection) -> None:
        connection.set_progress_handler(counted.tick, INSTRUCTIONS_PER_TICK)

    apsw.connection_hooks.append(hook)
    yield counted
    apsw.connection_hooks.remove(hook)


async def fan_out(
    url: str, count: int, counted: Counted
) -> tuple[collections.Counter[str], int, dict[str, int], float]:
    """The kinds of records of the parent, the machine's instructions, the calls, and the seconds."""
    app = Onward(url, slots=100, poll_s=0.2)
    app.task(_child, name="child")
    app.task(_parent, name="parent")
    counted.over(app.store)
    async with app:
        async with app.worker():
            counted.verbs.clear()
            counted.steps, began = 0, time.perf_counter()
            task = await app.submit("parent", count)
            assert await task.result(3_600) == sum(range(count))
            took = time.perf_counter() - began
        steps, verbs = counted.steps, dict(counted.verbs)
        kinds: collections.Counter[str] = collections.Counter()
        numbers: set[int] = set()
        after = 0
        while page := await app.store.journal(task.id, after, 5_000):
            kinds.update(record.kind for record in page)
            numbers |= {record.value["n"] for record in page if record.kind == r.MESSAGE}
            after = page[-1].seq
    assert numbers == set(range(1, count + 1))
    return kinds, steps, verbs, took


async def _child(_ctx: Any, number: int) -> int:
    return number


async def _parent(ctx: Any, count: int) -> int:
    return sum(await ctx.map("child", range(count)))


@pytest.mark.slow
@not_memory
async def test_the_cost_of_children_grows_as_their_number(url: str, kind: str, counted: Counted, prove: bool) -> None:
    few, many = (10_000, 100_000) if prove else (150, 1_500)
    costs = []
    for count in (few, many):
        kinds, steps, verbs, took = await fan_out(url, count, counted)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"\n  fan-out · {kind} · {count} children · {took:.1f} s · {steps} instructions · {verbs} · {memory} MB")
        assert (kinds[r.MESSAGE], kinds[r.WAITED], kinds[r.CHILD]) == (count, count, count)
        assert sum(kinds.values()) < 6 * count
        costs.append((steps, verbs.get("records read", 0) + count * 6, verbs["inbox"] + count / INBOX_PAGE_SIZE + 20))
    for less, more in zip(*costs, strict=True):
        assert more <= (MAX_GROWTH if prove else MAX_GROWTH_OF_FEW) * 10 * less + 10 * INSTRUCTIONS_PER_TICK


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite file"], indirect=True)
async def test_a_scan_of_the_inbox_for_each_child_is_seen(
    url: str, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement as it was: every end of a child read the whole inbox of its parent."""
    old = sqlite_run.S["posted"]
    head = old.sql.partition("WHERE")[0]
    slow = head + "WHERE task_id = ?1 AND (id = ?2 OR ref = ?3) ORDER BY number LIMIT 1"
    monkeypatch.setitem(sqlite_run.S, "posted", Statement(slow, old.names))
    costs = [(await fan_out(url, count, counted))[1] for count in (150, 1_500)]
    assert costs[1] > MAX_GROWTH_OF_FEW * 10 * costs[0], "the planted scan was not found"


# ── what is read from a journal ──────────────────────────────────────────────────────────────────────────────────────


def message(number: int, kind: str = "signal", name: str = "go", ref: int | None = None) -> dict[str, Any]:
    return {"n": number, "kind": kind, "name": name, "ref": ref, "value": number}


def test_mail_is_found_by_its_address_in_the_order_of_its_numbers() -> None:
    mail = Mail()
    for number, name in enumerate(["go", "stop", "go", "go"], 1):
        mail.add(message(number, name=name))
    mail.add(message(5, "child", "c1"))
    mail.add(message(6, "answer", "", ref=12))
    assert mail.last == 6
    assert mail.take(1)["n"] == 1
    assert [mail.first(at)["n"] for at in (("signal", "go"), ("signal", "stop"), ("child", "c1"), 12)] == [3, 2, 5, 6]  # type: ignore[index]
    assert mail.first(("signal", "never")) is None
    assert [item["n"] for item in mail.take_all(("signal", "go"), ("signal", "stop"))] == [2, 3, 4]
    assert mail.first(("signal", "go")) is None
    assert [item["n"] for item in mail.all()] == [5, 6]


def test_more_budget_is_no_message_of_a_wait() -> None:
    mail = Mail()
    mail.add(message(1, "budget", ""))
    assert (mail.last_raise, mail.last, mail.all()) == (1, 1, [])


def test_a_journal_in_which_a_message_was_copied_twice_is_replayed_as_it_was() -> None:
    """Up to version 0.1 branches that waited at the same moment each wrote the messages down, and both could take one."""

    def copy(number: int) -> tuple[str, str, bytes]:
        return r.MESSAGE, "", f'{{"n":{number},"kind":"signal","name":"go","ref":null,"value":"v{number}"}}'.encode()

    waits = [(r.SIGNAL, f"[gather.{n}]signal go", b'{"signal":"go"}') for n in range(3)]
    took = [(r.WAITED, f"[gather.{n}]signal go", b'{"n":1}') for n in range(2)]
    replay = Replay(journal_of(*waits, copy(1), copy(1), took[0], copy(1), took[1], copy(2), copy(2), copy(1)))
    values = []
    for n in range(3):
        known = replay.next(f"[gather.{n}]signal go", frozenset({r.SIGNAL}))
        assert known is not None
        values.append(known.data.get("value") if known.over else "open")
    assert values == ["v1", "v1", "open"]
    assert [message["n"] for message in replay.mail.all()] == [2], "a message that was taken does not come back"
    assert replay.inbox == 2
