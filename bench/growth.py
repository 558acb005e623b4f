"""The growth table: what a submit, a claim, ten steps, a list, the overview and the doctor cost in a database that has grown.

    make bench BENCH=growth
    python -m bench growth --ended 10000 100000 --store postgres      some of it
    python -m bench growth --markdown docs/benchmarks.md              write the section of that page

Each case fills a database by SQL and stands beside an empty one. Both are measured in turns, so that whatever happens on the machine
happens to both, and only their ratio is reported. The aim is 1.5 times at most.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psycopg
import uvloop

from bench.measure import amount
from bench.report import Facts
from onward import Context, Onward
from onward.core.ids import Ids, first_id
from onward.core.record import COMPLETED
from onward.core.task import NewTask, State
from onward.engine.worker.presence import machine_id
from onward.errors import TaskFailed
from onward.store.port.core import Batch, End
from onward.store.port.workers import WorkerRow

AIM = 1.5
DAY = 86_400.0
SECTION = "## Growth"
TEXT = """\
The last table of `make bench BENCH=growth`: how many times longer something takes in a database that has grown than in an empty one
beside it, measured in turns (medians). The aim is 1.5 at most; what is above it is bold. `overview` is the numbers,
queues, workers, asks and lists of the console's first page (not its deliveries, schedules and usage). Above 10,000 unfinished tasks
`overview` and `doctor` mostly use a shared count; the first look pays for it, and that is not in the median. `doctor` is `onward doctor` without `--deep`, and `claim` is one task claimed of twenty that are ready.
"""
OPERATIONS = ("submit", "claim", "ten steps", "list", "overview", "doctor")
ROUNDS = {"submit": 60, "claim": 40, "ten steps": 25, "list": 40, "overview": 30, "doctor": 20}
QUICK = 5
Side = dict[str, Callable[[], Awaitable[float]]]


class Case(NamedTuple):
    """A way in which a database grows."""

    name: str
    ended: int = 0
    pending: int = 0
    asleep: int = 0
    churned: int = 0


def cases(options: argparse.Namespace) -> list[Case]:
    """All that are asked for."""
    found = [Case(f"{count:,} ended", ended=count) for count in options.ended]
    if options.pending:
        found.append(Case(f"{options.pending:,} pending of another handler", pending=options.pending))
    if options.asleep:
        found.append(Case(f"{options.asleep:,} asleep", asleep=options.asleep))
    if options.churned:
        found.append(Case(f"a snapshot held over {options.churned:,}", churned=options.churned))
    return found


# ── filling ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# A task that ended: four records, one in a hundred failed, one in twenty was approved by a person. `{id}` and `{n}` are its own.
TASK = (
    "INSERT INTO onward_tasks (id, task, queue, priority, created_at, fingerprint, input, options) "
    "SELECT {id}, '{task}', 'default', 0, {at} + {n} * 0.001, 'f', {input}, {options} FROM {numbers}"
)
JOURNAL = (
    "INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) "
    "SELECT {id}, seq, CASE WHEN seq = 1 THEN 0 ELSE 2 END, CASE seq WHEN 1 THEN 'task.submitted' WHEN 2 THEN 'shift.started' "
    "WHEN 3 THEN CASE WHEN {n} % 20 = 0 THEN 'approval.requested' ELSE 'step.completed' END "
    "ELSE CASE WHEN {n} % 100 = 0 THEN 'task.failed' ELSE 'task.completed' END END, "
    "CASE seq WHEN 3 THEN 'charge' ELSE '' END, {data}, {at} + {n} * 0.001 FROM {numbers} CROSS JOIN ({records}) AS r"
)
OUTCOME = (
    "INSERT INTO onward_outcomes (task_id, state, attempt, seq, finished_at) "
    "SELECT {id}, CASE WHEN {n} % 100 = 0 THEN 'failed' ELSE 'completed' END, 1, 4, {at} + {n} * 0.001 FROM {numbers}"
)
QUEUE = (
    "INSERT INTO onward_queue (task_id, queue, task, priority, due_at, reason) "
    "SELECT {id}, 'default', '{task}', 0, {due}, '{reason}' FROM {numbers}"
)
SLICE = 200_000
POSTGRES = {
    "id": "'{head}' || lpad(n::text, 12, '0')",
    "numbers": "generate_series({low}::bigint, {high}) AS g(n)",
    "input": "convert_to('{{\"order\":' || n || ',\"to\":\"somebody\"}}', 'UTF8')",
    "options": "'{{}}'",
    "data": 'convert_to(\'{{"result":{{"charged":\' || n || \',"currency":"EUR","receipt":"r-0123456789"}}}}\', \'UTF8\')',
    "never": "'Infinity'",
    "records": "SELECT generate_series(1, {most}) AS seq",
}
SQLITE = POSTGRES | {
    "id": "'{head}' || printf('%012d', n)",
    "numbers": "(WITH RECURSIVE g(n) AS (SELECT {low} UNION ALL SELECT n + 1 FROM g WHERE n < {high}) SELECT n FROM g)",
    "input": 'CAST(\'{{"order":\' || n || \',"to":"somebody"}}\' AS BLOB)',
    "options": "CAST('{{}}' AS BLOB)",
    "data": 'CAST(\'{{"result":{{"charged":\' || n || \',"currency":"EUR","receipt":"r-0123456789"}}}}\' AS BLOB)',
    "never": "9e999",
    "records": "SELECT value AS seq FROM json_each('{list}')",
}


def statements(words: dict[str, str], case: Case) -> Iterator[str]:
    """What fills a database, in slices that every server takes."""
    at = time.time() - 30 * DAY
    head = first_id(at)[:14]
    for name, count, most in (
        ("ended", case.ended + case.churned, 4),
        ("pending", case.pending, 1),
        ("asleep", case.asleep, 2),
    ):
        for low in range(1, count + 1, SLICE):
            bounds = {"low": low, "high": min(low + SLICE - 1, count), "head": head, "most": most}
            bounds |= {"list": str(list(range(1, most + 1)))}
            values = {key: text.format(**bounds) for key, text in words.items()} | {"n": "n", "at": repr(at)}
            values |= {"task": "grown" if name == "ended" else "foreign"}
            yield TASK.format(**values)
            yield JOURNAL.format(**values)
            if name == "ended":
                yield OUTCOME.format(**values)
            elif name == "pending":
                yield QUEUE.format(**values, due="NULL", reason="queued")
            else:
                yield QUEUE.format(**values, due=repr(at + 300 * DAY), reason="asleep")


def churn(words: dict[str, str], case: Case) -> Iterator[str]:
    """Queue rows that come, are held, and go: what is left of them is dead, and nothing may clear it away while the snapshot is held."""
    head = first_id(time.time() - 30 * DAY)[:14]
    for low in range(1, case.churned + 1, 10_000):
        bounds = {"low": low, "high": min(low + 9_999, case.churned), "head": head, "most": 1, "list": "[1]"}
        values = {key: text.format(**bounds) for key, text in words.items()}
        yield QUEUE.format(**values, task="steps", due="NULL", reason="queued")
        these = f"WHERE task_id IN (SELECT {values['id']} FROM {values['numbers']})"
        yield f"UPDATE onward_queue SET worker = 'w', reason = 'running' {these}"
        yield f"DELETE FROM onward_queue {these}"


@contextlib.contextmanager
def grown(store: str, url: str, case: Case) -> Iterator[None]:
    """A database that is filled, and the snapshot that is held while it is measured."""
    asyncio.run(_make(url))
    fill, held = (_fill_postgres, _hold_postgres) if store == "postgres" else (_fill_sqlite, _hold_sqlite)
    fill(url, [*statements(POSTGRES if store == "postgres" else SQLITE, case)], tidy=True)
    with held(url) if case.churned else contextlib.nullcontext():
        if case.churned:
            fill(url, [*churn(POSTGRES if store == "postgres" else SQLITE, case)], tidy=False)
        yield


async def _make(url: str) -> None:
    async with Onward(url):
        pass


def _fill_postgres(url: str, filling: list[str], *, tidy: bool) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for statement in filling:
            connection.execute(statement)  # type: ignore[arg-type]
        if tidy:
            connection.execute("VACUUM ANALYZE")  # as the server does by itself, a little later
        connection.execute("CHECKPOINT")


def _fill_sqlite(url: str, filling: list[str], *, tidy: bool) -> None:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA cache_size=-200000")
    for statement in filling:
        connection.execute(statement)
    if tidy:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@contextlib.contextmanager
def _hold_postgres(url: str) -> Iterator[None]:
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM onward_workers")
        yield


@contextlib.contextmanager
def _hold_sqlite(url: str) -> Iterator[None]:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.execute("BEGIN")
    list(connection.execute("SELECT count(*) FROM onward_workers"))
    yield
    connection.close()


# ── measuring ────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def side(url: str) -> Any:
    """What can be measured in one database: each operation gives the seconds that it took."""
    app = Onward(url, queue_limit=10_000_000)

    async def noop() -> dict[str, Any]:
        return {"ok": True}

    @app.task
    async def steps(ctx: Context, count: int) -> None:
        for _ in range(count):
            await ctx.step(noop)

    @app.task(retry=1)
    async def fails(ctx: Context) -> None:
        raise ValueError

    async with app:
        store, service = app.store, app.service
        names, ids = itertools.count(), Ids(time.time, random.Random(next(_SEEDS)))
        me = "bench-worker"

        def new() -> NewTask:
            return NewTask(
                id=ids(), task="claimed", input=b"1", options=b"{}", queue="default", priority=0, delay=0.0, key=None,
                fingerprint=str(next(names)),
            )  # fmt: skip

        async def submit() -> None:
            await app.submit("steps", {"count": 0}, queue="untouched")

        async def claim() -> float:
            await store.submit([new() for _ in range(20)])
            await store.workers.join(
                WorkerRow(me, machine_id(), "here", os.getpid(), 10, ("claimed",), (), "", "0"), 3600.0
            )
            began = time.perf_counter()
            (first,) = await store.claim(me, "default", ["claimed"], 1)
            taken = time.perf_counter() - began
            rest = await store.claim(me, "default", ["claimed"], 100)
            for one in [first, *rest]:
                entry = (one.id, one.shift + 1, one.shift, COMPLETED, "", b'{"result":1}', time.time())
                await store.save(me, Batch([entry], [End(one.id, State.COMPLETED, 1, one.shift + 1)]))
            await store.workers.leave(me)
            return taken

        async def ten_steps() -> None:
            await (await app.submit("steps", {"count": 10})).result(timeout=60)

        async def page() -> None:
            await service.list(limit=20, brief=True)

        async def overview() -> None:
            await service.cluster.stats()
            await service.cluster.queues()
            await service.cluster.workers()
            await service.messages.asks()
            await service.list(limit=8, brief=True)
            await service.list(limit=20, state="failed", brief=True)

        async def doctor() -> None:
            await service.health.checks()

        async with app.worker(queues=["default"]):
            for _ in range(30):  # so that every list has its page, on either side
                await ten_steps()
            failed = [await app.submit("fails") for _ in range(20)]
            for one in failed:
                with contextlib.suppress(TaskFailed):
                    await one.result(timeout=60)
            yield {
                "submit": _timed(submit),
                "claim": claim,
                "ten steps": _timed(ten_steps),
                "list": _timed(page),
                "overview": _timed(overview),
                "doctor": _timed(doctor),
            }


_SEEDS = itertools.count(1)


def _timed(work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[float]]:
    async def run() -> float:
        began = time.perf_counter()
        await work()
        return time.perf_counter() - began

    return run


async def compare(empty: str, full: str, rounds: dict[str, int]) -> dict[str, tuple[float, float]]:
    """The medians of each operation in an empty and in a full database, in seconds."""
    found = {}
    async with side(empty) as before, side(full) as after:
        for name in OPERATIONS:
            pairs = []
            for number in range(rounds[name] + 2):
                pair = (await before[name](), await after[name]())
                pairs += [pair] if number >= 2 else []  # the first ones prepare statements
            found[name] = (statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs))
    return found


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────

Row = tuple[str, str, dict[str, tuple[float, float]]]


def table(rows: list[Row]) -> str:
    """Ratios, with the milliseconds of the grown database."""
    head = f"| database | store | {' | '.join(OPERATIONS)} |\n|---|---|{'--:|' * len(OPERATIONS)}"
    lines = [
        f"| {case} | {store} | {' | '.join(_cell(*found[name]) for name in OPERATIONS)} |"
        for case, store, found in rows
    ]
    return "\n".join([head, *lines, ""])


def _cell(before: float, after: float) -> str:
    ratio = after / before
    told = f"{ratio:.2f}" if ratio <= AIM else f"**{ratio:.2f}**"
    return f"{told} ({amount(after * 1000)} ms)"


def write(page: Path, found: Facts, rows: list[Row]) -> None:
    """The section of the page, in the place of the one before."""
    facts = "\n".join(f"- {name}: {value}" for name, value in found.items())
    before = page.read_text().partition(f"\n{SECTION}\n")[0].rstrip("\n")
    page.write_text(f"{before}\n\n{SECTION}\n\n{TEXT}\n{facts}\n\n{table(rows)}")


def run(options: argparse.Namespace, ground: Any, found: Facts) -> int:
    """All cases on all stores; the status is 1 when something is above the aim."""
    logging.getLogger("onward").setLevel(logging.CRITICAL)  # tasks fail here on purpose
    rows: list[Row] = []
    rounds = {name: max(3, count // QUICK) if options.quick else count for name, count in ROUNDS.items()}
    for store in options.store:
        for case in cases(options):
            began = time.monotonic()
            empty, full = ground.pair(store)
            asyncio.run(_make(empty))
            with grown(store, full, case):
                filled = time.monotonic() - began
                print(f"{case.name}, {store}: filled in {filled:.0f} s", file=sys.stderr, flush=True)
                rows.append((case.name, store, uvloop.run(compare(empty, full, rounds))))
            ground.forget(store)
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    if options.markdown:
        write(options.markdown, found, rows)
    return int(any(after > before * AIM for _, _, cells in rows for before, after in cells.values()))


def parse(words: list[str]) -> argparse.Namespace:
    """What to fill, and where."""
    parser = argparse.ArgumentParser(
        prog="python -m bench growth", description="What things cost in a database that has grown."
    )
    parser.add_argument("--ended", nargs="*", type=int, default=[10_000, 100_000, 1_000_000, 3_000_000], metavar="N")
    parser.add_argument(
        "--pending", type=int, default=100_000, metavar="N", help="tasks of a handler that no worker has"
    )
    parser.add_argument("--asleep", type=int, default=100_000, metavar="N")
    parser.add_argument(
        "--churned", type=int, default=1_000_000, metavar="N", help="tasks that come and go under a snapshot"
    )
    parser.add_argument("--store", nargs="+", choices=("postgres", "sqlite"), default=("postgres", "sqlite"))
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the section of that page")
    return parser.parse_args(words)


def room(directory: Path, options: argparse.Namespace) -> None:
    """Raise when the disk is too small: some 2 kB for each task."""
    needed = 2_000 * max([*options.ended, options.churned, 1])
    free = shutil.disk_usage(directory).free
    if free < needed * 2:
        raise SystemExit(
            f"growth needs {needed * 2 / 1e9:.0f} GB on the disk of {directory}, and {free / 1e9:.0f} GB are free"
        )
