"""Random programs of branches that wait side by side, for the processes that a fault test kills and freezes, and their judge.

A program is a list of branches, of one gather or with names of their own, each a list of acts: take a signal (with a timeout, or without), charge its value, wait for
a child, listen to messages, sleep, or do some of that inside a saga, which may fail. The test sends as many signals of each
name as there are waits for it, each with a value of its own, so every wait without a time ends.
"""

from __future__ import annotations

import asyncio
import collections
import random
from collections.abc import Callable, Iterable
from typing import Any

from onward import Onward, Retry
from onward.core import record as r
from onward.core.record import Record
from onward.engine.shift.mail import Mail
from onward.engine.shift.waits import POLL_INTERVAL_S, Waits

Act = list[Any]
NAMES = ("order", "go")


class Misfortune(Exception):
    """The failure of a saga in a program."""


def app_of(options: dict[str, Any], **settings: Any) -> Onward:
    """The app of a crew, and of the test."""
    if options.get("planted"):
        PLANTED[options["planted"]]()
    app = Onward(options["db"], **settings)
    app.task(child, name="child", retry=Retry(attempts=3, first=0.01))
    app.task(program, name="program", retry=1)
    return app


async def child(ctx: Any, number: int) -> int:
    await ctx.sleep(0.01 * (number % 9))
    return number


async def program(ctx: Any, branches: list[list[Act]], named: bool = False) -> list[Any]:
    if named:
        return await _like_a_framework(ctx, branches)
    return await ctx.gather(*(_branch(ctx, acts) for acts in branches))


async def _like_a_framework(ctx: Any, branches: list[list[Act]]) -> list[Any]:
    """The branches by name, in tasks of asyncio that begin in another order in every shift."""

    async def run(number: int, acts: list[Act]) -> list[Any]:
        await asyncio.sleep(random.choice([0, 0, 0.001, 0.01]))
        async with ctx.branch(f"call.{number}"):
            return await _branch(ctx, acts)

    tasks = [(number, run(number, acts)) for number, acts in enumerate(branches)]
    random.shuffle(tasks)
    results = await asyncio.gather(*(task for _, task in tasks))
    return [result for _, result in sorted(zip((number for number, _ in tasks), results, strict=True))]


async def _branch(ctx: Any, acts: list[Act]) -> list[Any]:
    return [await _act(ctx, *act) for act in acts]


async def _act(ctx: Any, kind: str, *args: Any) -> Any:
    match kind:
        case "take":
            name, timeout = args
            value = await ctx.signal(name, timeout=timeout, default=None)
            if value is not None:
                await ctx.step(_charge, value, name=f"charge {value}")
            return value
        case "child":
            return await (await ctx.submit("child", args[0]))
        case "hear":
            return await ctx.messages()
        case "sleep":
            return await ctx.sleep(args[0])
        case "step":
            return await ctx.step(asyncio.sleep, args[0], name="busy")
        case _:
            return await _saga(ctx, *args)


async def _saga(ctx: Any, acts: list[Act], fails: bool) -> Any:
    try:
        async with ctx.saga():
            await ctx.step(_charge, "reserve", name="reserve", undo=_charge)
            results = await _branch(ctx, acts)
            if fails:
                raise Misfortune
            return results
    except Misfortune:
        return "undone"


async def _charge(value: Any) -> Any:
    return value


# ── programs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def draw(rng: random.Random) -> list[list[Act]]:
    """A program at random."""
    return [[_draw(rng) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(2, 5))]


def _draw(rng: random.Random, deep: bool = False) -> Act:
    kind = rng.choices(["take", "child", "hear", "sleep", "step", "saga"], [9, 3, 2, 2, 3, 0 if deep else 2])[0]
    match kind:
        case "take":
            return [kind, rng.choice(NAMES), rng.choice([None, None, 0.05, 0.3, 1.5])]
        case "child":
            return [kind, rng.randint(0, 99)]
        case "hear":
            return [kind]
        case "sleep":
            return [kind, rng.choice([0.02, 0.3, 1.2])]
        case "step":
            return [kind, rng.choice([0.0, 0.02, 0.2])]
        case _:
            return [kind, [_draw(rng, deep=True) for _ in range(rng.randint(1, 2))], rng.random() < 0.4]


def signals(branches: list[list[Act]]) -> list[str]:
    """The names of the signals to send: one for each wait, and enough for every wait without a timeout."""
    return [act[1] for act in _all(branches) if act[0] == "take"]


def children(branches: list[list[Act]]) -> int:
    return sum(act[0] == "child" for act in _all(branches))


def _all(branches: Iterable[list[Act]]) -> Iterable[Act]:
    for acts in branches:
        for act in acts:
            yield act
            if act[0] == "saga":
                yield from _all([act[1]])


# ── the judge ────────────────────────────────────────────────────────────────────────────────────────────────────────


def judge(records: list[Record]) -> list[str]:
    """The faults of a journal. Each message is in it once and ends one wait at most. That wait is the one that began
    first of those for its address, and it gets the first message there."""
    wrong: list[str] = []
    messages: dict[int, dict[str, Any]] = {}
    taken: dict[int, str] = {}
    waiting: dict[str, dict[str, int]] = collections.defaultdict(dict)
    charged: set[str] = set()
    for record in records:
        match record.kind:
            case r.MESSAGE:
                number = record.value["n"]
                if number in messages:
                    wrong.append(f"message {number} is recorded twice, the second time in {record.seq}")
                elif number != len(messages) + 1:
                    wrong.append(f"message {number} is recorded after {len(messages)}")
                messages[number] = record.value
            case r.SIGNAL:
                waiting[record.value["signal"]][record.key] = record.seq
            case r.WAITED | r.HEARD:
                wrong += _take(record, messages, taken, waiting)
            case r.STEP_DONE if "charge " in record.key:
                value = record.key.rpartition("charge ")[2]
                wrong += [f"{value} was charged twice"] if value in charged else []
                charged.add(value)
    return wrong


def _take(
    record: Record, messages: dict[int, dict[str, Any]], taken: dict[int, str], waiting: dict[str, dict[str, int]]
) -> list[str]:
    wrong = []
    numbers = record.value.get("n", [])
    for number in numbers if isinstance(numbers, list) else [numbers]:
        if number not in messages:
            return [f"record {record.seq} takes message {number}, which is not there"]
        message = messages[number]
        if message["kind"] == "child":
            continue
        if number in taken:
            wrong.append(f"message {number} was taken by {taken[number]} and by {record.key}")
        taken[number] = record.key
        if record.kind == r.WAITED:
            name = message["name"]
            first = min(waiting[name], key=waiting[name].__getitem__)
            if first != record.key:
                wrong.append(f"{record.key} has message {number}, but {first} began to wait before it")
            before = [n for n, message in messages.items() if message["name"] == name and n < number and n not in taken]
            wrong += [f"message {number} was taken before {before}"] if before else []
    for open_ in waiting.values():
        open_.pop(record.key, None)
    return wrong


# ── planted ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def look_alone(self: Waits) -> bool:
    """A planted `poll_inbox`: every wait reads the inbox for itself."""
    before = self._journal.replay.mail.last
    page = await self._journal.retry_store(lambda: self._services.store.inbox(self._task_id, before))
    for message in page:
        self._copy_to_journal(message)
    self._caught_up = True
    return bool(page)


def put_back(self: Mail, message: dict[str, Any]) -> None:
    """A planted `add`: a message that another wait has taken can be taken again."""
    self.last = message["n"]
    self._put(message)


async def rest_alone(self: Waits, open_wait: Any, left: float) -> None:
    """A planted `_wait_in_memory`: each wait reads the inbox at its own times."""
    open_wait.future = asyncio.get_running_loop().create_future()
    pause = asyncio.ensure_future(self._services.clock.sleep(min(left, POLL_INTERVAL_S)))
    try:
        await asyncio.wait({open_wait.future, pause}, return_when=asyncio.FIRST_COMPLETED)
        if open_wait.future.done():
            open_wait.future.result()
    finally:
        pause.cancel()
        open_wait.future.cancel()
    self._mark_active(open_wait)
    if open_wait.request.kind != r.SLEEP:
        await look_alone(self)


READERS = {(Waits, "poll_inbox"): look_alone, (Waits, "_wait_in_memory"): rest_alone, (Mail, "add"): put_back}
"""The method to replace → its replacement, for several readers of one inbox."""


def several_readers() -> None:
    for (owner, name), instead in READERS.items():
        setattr(owner, name, instead)


PLANTED: dict[str, Callable[[], None]] = {"several readers": several_readers}
