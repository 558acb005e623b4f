"""The bare limits: what the machine, the database and its driver give when nobody asks for an engine.

    group commit    200 rows of 200 tasks in one statement and one commit, again and again: bounds W3, and W1 in batches
    single commit   one row, one commit, one by one: bounds W1 one by one, and eleven of them a task of ten steps (W4)

No fence, no lease, no queue, no serialising: the rows are ready before the clock starts. Nobody reaches these figures; how
near one comes is what an engine costs. Keep TABLES and INSERTS in the shape of the real journal, or the ratio means nothing.

The length of the journals counts too. 200 tasks write 20 records each and then make room for 200 others, as in W3; with
1,000 records each, every row of a commit falls on a page of its own, and SQLite gives a quarter of the figure.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import asyncpg
import uvloop

from bench.measure import BARE, W1_BATCH, W1_ONE, W3, W4_STEPS, Figure, latency, percentile

TABLES = {
    "postgres": """
        CREATE TABLE bare_journal (
            task_id text COLLATE "C" NOT NULL, seq integer NOT NULL, shift integer NOT NULL, kind text NOT NULL,
            key text NOT NULL, data bytea NOT NULL, at float8 NOT NULL, PRIMARY KEY (task_id, seq))""",
    "sqlite": """
        CREATE TABLE bare_journal (
            task_id TEXT NOT NULL, seq INTEGER NOT NULL, shift INTEGER NOT NULL, kind TEXT NOT NULL,
            key TEXT NOT NULL, data BLOB NOT NULL, at REAL NOT NULL, PRIMARY KEY (task_id, seq)) STRICT""",
}
INSERTS = {
    "postgres": """
        INSERT INTO bare_journal (task_id, seq, shift, kind, key, data, at) SELECT * FROM
        unnest($1::text[], $2::int[], $3::int[], $4::text[], $5::text[], $6::bytea[], $7::float8[])""",
    "postgres, one row": "INSERT INTO bare_journal (task_id, seq, shift, kind, key, data, at) VALUES ($1, $2, $3, $4, $5, $6, $7)",
    "sqlite": "INSERT INTO bare_journal (task_id, seq, shift, kind, key, data, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
}
SQLITE_PRAGMAS = {"journal_mode": "wal", "synchronous": "full"}

TASKS = 200
RECORDS = 20
COMMITS_OF_TEN_STEPS = 11

Row = tuple[str, int, int, str, str, bytes, float]


def measure(store: str, url: str, quick: bool) -> list[Figure]:
    commits, singles = (100, 500) if quick else (1000, 5000)
    if store == "postgres":
        group_rate, single = uvloop.run(_postgres(url, commits, singles))
    else:
        group_rate, single = _sqlite(Path(url.removeprefix("sqlite:///")), commits, singles)
    ten_steps = percentile(single, 50) * 1000 * COMMITS_OF_TEN_STEPS
    group_note = f"{TASKS} rows a commit, {commits:,} commits, one connection"
    return [
        Figure(W1_ONE, BARE, store, len(single) / sum(single), "rows/s", f"one row a commit, {latency(single)}"),
        Figure(W1_BATCH, BARE, store, group_rate, "rows/s", group_note),
        Figure(W3, BARE, store, group_rate, "rows/s", group_note),
        Figure(W4_STEPS, BARE, store, ten_steps, "ms", f"{COMMITS_OF_TEN_STEPS} single commits"),
    ]


def fdatasync_microseconds(directory: Path) -> float:
    """What this disk takes to keep 8 kB, the median: the number that decides how much a commit costs."""
    path = directory / "fdatasync"
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        os.pwrite(file, bytes(1 << 20), 0)
        os.fsync(file)
        taken = [_sync(file, offset * 8192) for offset in range(100)]
    finally:
        os.close(file)
        path.unlink()
    return percentile(taken, 50) * 1e6


def _sync(file: int, offset: int) -> float:
    start = time.perf_counter()
    os.pwrite(file, b"x" * 8192, offset)
    os.fdatasync(file)
    return time.perf_counter() - start


def _rounds(first: int, count: int) -> Iterator[list[Row]]:
    """Each round is the next record of every task, as when all of them finish a step at the same time."""
    now = time.time()
    for number in range(first, first + count):
        generation, seq = divmod(number, RECORDS)
        tasks = [f"01JCHQ5X9M{generation * TASKS + task:016d}" for task in range(TASKS)]
        yield [(task, seq, 1, "step.completed", f"step-{seq}", _payload(seq), now) for task in tasks]


def _payload(seq: int) -> bytes:
    return b'{"result":{"ok":true,"number":%10d}}' % seq


async def _postgres(url: str, commits: int, singles: int) -> tuple[float, list[float]]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(TABLES["postgres"])
        group = await connection.prepare(INSERTS["postgres"])
        batches = [tuple(map(list, zip(*rows, strict=True))) for rows in _rounds(1, commits)]
        await group.fetch(*map(list, zip(*next(_rounds(0, 1)), strict=True)))
        start = time.perf_counter()
        for columns in batches:
            await group.fetch(*columns)
        rate = TASKS * commits / (time.perf_counter() - start)

        one = await connection.prepare(INSERTS["postgres, one row"])
        taken = []
        for row in _some_rows(commits + 1, singles):
            start = time.perf_counter()
            await one.fetch(*row)
            taken.append(time.perf_counter() - start)
        return rate, taken
    finally:
        await connection.close()


def _sqlite(path: Path, commits: int, singles: int) -> tuple[float, list[float]]:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        for pragma, value in SQLITE_PRAGMAS.items():
            connection.pragma(pragma, value)
        connection.execute(TABLES["sqlite"])
        insert = INSERTS["sqlite"]
        batches = list(_rounds(1, commits))
        start = time.perf_counter()
        for rows in batches:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(insert, rows)
            connection.execute("COMMIT")
        rate = TASKS * commits / (time.perf_counter() - start)

        taken = []
        for row in _some_rows(commits + 1, singles):
            start = time.perf_counter()
            connection.execute(insert, row)
            taken.append(time.perf_counter() - start)
        return rate, taken


def _some_rows(first_round: int, count: int) -> list[Row]:
    rounds = _rounds(first_round, -(-count // TASKS))
    return [row for rows in rounds for row in rows][:count]
