"""What a console asks most, with 100,000 tasks: `python -m bench.console [--store postgres] [--tasks N]`.

Lists with every filter, also such that nothing matches; how many match; and the timeline of a task with 10,000 records. Each is asked
several times over the service, on a database as it is after a while (analysed). Where others use the machine, go by the CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from onward import Onward
from onward.core.task import NewTask
from onward.store.port.core import Batch
from rig.postgres import Postgres

TIMES = 9
RECORDS = 10_000
CITIES = ("Graz", "Linz", "Wien", "Ürzig", "Bern")


def made(app: Onward, number: int) -> NewTask:
    """Tasks as they are: some labelled, some keyed, inputs of a few hundred bytes."""
    said = {"to": f"user{number}@example.com", "city": CITIES[number % 5], "text": "the quick brown fox " * 12}
    options = {"labels": {"team": f"t{number % 20}", "env": "prod"}} if number % 2 else {}
    return NewTask(
        app._ids(),
        f"work{number % 10}",
        json.dumps(said, ensure_ascii=False).encode(),
        json.dumps(options, separators=(",", ":")).encode(),
        "default" if number % 3 else "mail",
        0,
        0.0,
        f"key-{number}" if number % 4 == 0 else None,
        "",
    )


async def filled(app: Onward, tasks: int) -> None:
    """Nine of ten have ended, nearly all of them well."""
    for start in range(0, tasks, 1000):
        await app.store.submit([made(app, start + number) for number in range(1000)])
    store: Any = app.store
    where = f"(SELECT id FROM onward_tasks ORDER BY id LIMIT {tasks * 9 // 10})"
    statements = [
        "INSERT INTO onward_outcomes (task_id, state, attempt, seq, finished_at) SELECT id, "
        "CASE WHEN substr(id, 25, 1) = '0' THEN 'failed' ELSE 'completed' END, 1, 2, created_at FROM onward_tasks "
        f"WHERE id IN {where}",
        "INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) "
        "SELECT task_id, 2, 0, 'task.completed', '', (SELECT data FROM onward_journal LIMIT 1), finished_at FROM onward_outcomes",
        f"DELETE FROM onward_queue WHERE task_id IN {where}",
        "VACUUM ANALYZE" if not hasattr(store._db, "writing") else "ANALYZE",
    ]
    for statement in statements:
        if hasattr(store._db, "writing"):
            await store._db.writing(lambda c, statement=statement: list(c.execute(statement)))
        else:
            async with store._db.connection() as connection:
                await connection.execute(statement)


async def long_one(app: Onward) -> str:
    """A task with a journal of 10,000 records."""
    task = made(app, 0)._replace(key=None, task="long", queue="long")
    await app.store.submit([task])
    done = json.dumps({"ms": 3, "result": {"rows": list(range(40))}}).encode()
    for start in range(2, RECORDS, 500):
        batch = Batch()
        for seq in range(start, start + 500):
            kind, data = ("shift.started", b'{"worker":"w"}') if seq % 1000 == 2 else ("step.completed", done)
            batch.entries.append((task.id, seq, 2, kind, f"step#{seq}", data, float(seq)))
        await app.store.save("w", batch)
    return task.id


def cpu() -> float:
    """Milliseconds of work, of this process and of the database's: what a machine with nothing else to do would take."""
    spent = time.process_time() * 1000
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() == "postgres":
                spent += int((process / "schedstat").read_text().split()[0]) / 1e6
        except OSError:
            continue
    return spent


async def timed(ask: Callable[[], Awaitable[Any]]) -> tuple[str, Any]:
    """The median of the time and of the work that it takes, after a first time that counts for nothing."""
    taken, worked, found = [], [], await ask()
    for _ in range(TIMES):
        before, began = cpu(), time.perf_counter()
        found = await ask()
        taken.append((time.perf_counter() - began) * 1000)
        worked.append(cpu() - before)
    return f"{statistics.median(taken):8.1f} ms {statistics.median(worked):8.1f} ms", found


QUESTIONS: dict[str, dict[str, Any]] = {
    "the first page": {},
    "state=failed": {"state": "failed"},
    "state=completed": {"state": "completed"},
    "state=failed,running,waiting": {"state": ["failed", "running", "waiting"]},
    "task=work3": {"task": "work3"},
    "task that nobody has": {"task": "nothing"},
    "two tasks, one queue": {"task": ["work3", "work5"], "queue": "mail"},
    "label": {"labels": {"team": "t3"}},
    "label that nobody has": {"labels": {"team": "nobody"}},
    "text, often": {"text": "fox"},
    "text, once": {"text": "USER77@example"},
    "text that nobody has": {"text": "zebra"},
    "text that nobody has, not ASCII": {"text": "žebra"},
    "all of it, nothing matches": {
        "state": ["completed", "failed", "pending"],
        "task": ["work3", "work5"],
        "labels": {"env": "prod"},
        "text": "zebra",
    },
    "unfinished, text that nobody has": {"state": ["pending", "waiting", "running"], "text": "zebra"},
    "of a tenant, nothing": {"whose": "acme", "text": "zebra"},
}


async def measured(url: str, tasks: int) -> None:
    app = Onward(url)
    async with app:
        await filled(app, tasks)
        for name, which in QUESTIONS.items():
            took, (page, _) = await timed(lambda which=which: app.service.list(limit=50, **which))
            print(f"  {name:34} {took}   {len(page)} tasks")
        page, _ = await app.service.list(limit=50)
        if hasattr(app.service, "whys"):
            took, _ = await timed(lambda: app.service.explainer.of(page))
            print(f"  {'why, for a page of 50':34} {took}")
        if hasattr(app.service, "count"):
            for name in ("the first page", "task=work3", "text that nobody has"):
                which = QUESTIONS[name]
                took, found = await timed(lambda which=which: app.service.count(**which))
                print(f"  {'count: ' + name:34} {took}   {found}")
        task_id = await long_one(app)
        took, found = await timed(lambda: app.service.timelines.timeline(task_id))
        print(f"  {f'timeline of {RECORDS:,} records':34} {took}   {len(found.bars)} bars")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", nargs="*", default=["sqlite", "postgres"])
    parser.add_argument("--tasks", type=int, default=100_000)
    options = parser.parse_args()
    with ExitStack() as stack:
        for store in options.store:
            if store == "postgres":
                url = stack.enter_context(Postgres()).database("console")
            else:
                url = f"sqlite:///{Path(stack.enter_context(tempfile.TemporaryDirectory())) / 'onward.db'}"
            print(f"{store}, {options.tasks:,} tasks (medians of {TIMES}: time, and CPU time)")
            asyncio.run(measured(url, options.tasks))


if __name__ == "__main__":
    main()
