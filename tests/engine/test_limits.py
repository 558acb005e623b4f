"""Groups and limits through the public API: fair turns, a number of tasks at once, a rate; and no task is lost."""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onward import Limit, Onward, State
from onward.core.limit import Bound, Candidate, Room, share
from onward.errors import BadSetting, UsageError
from onward.service.submission import SubmitRequest
from onward.testing import drain, memory_app
from tests.kit import Gate, Lab, calm, eventually, not_memory, sql

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "limits.md"


# ── the words ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rate", "burst", "bucket"),
    [
        ("10/m", None, (6.0, 10)),
        ("5/s", None, (0.2, 5)),
        (" 1 / 1h30m ", None, (5400.0, 1)),
        ("100/h", 1, (36.0, 1)),
    ],
)
def test_a_rate_is_a_number_in_a_time(rate: str, burst: int | None, bucket: tuple[float, int]) -> None:
    assert Limit(rate=rate, burst=burst).bucket == bucket


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"rate": "10"},
        {"rate": "0/m"},
        {"rate": "5/0s"},
        {"rate": "5/x"},
        {"rate": 5},
        {"burst": 3},
        {"rate": "1/s", "burst": 0},
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(BadSetting):
        Limit(**numbers)


def test_share_takes_and_refuses_candidates_by_the_room_of_their_limit() -> None:
    rooms = {"a": Room(Bound(2, None, None), 1, None, 0.0), "b": Room(Bound(None, 10.0, 2), 0, 10.0, 5.0)}
    line = [Candidate(f"{gate}{n}", gate, fresh=n > 0) for n in range(3) for gate in ("a", "b", None)]
    taken, refused = share(line, rooms, 5)
    assert [task.id for task in taken] == ["a0", "b0", "None0", "b1", "None1"]
    assert [task.id for task in refused] == ["a1", "a2", "b2"]
    assert rooms["b"].next_at == 10.0


# ── how many at once ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_one_deploy_per_service(app: Onward) -> None:
    running: dict[str, int] = {}
    most: dict[str, int] = {}

    @app.task(group="service", limit=Limit(concurrency=1))
    async def deploy(ctx: Any, service: str, version: int) -> int:
        running[service] = running.get(service, 0) + 1
        most[service] = max(most.get(service, 0), running[service])
        await asyncio.sleep(0.02)
        running[service] -= 1
        return version

    inputs = [{"service": name, "version": n} for n in range(6) for name in ("web", "shop", "mail")]
    tasks = await app.submit_many(deploy, inputs)
    async with app.worker(), app.worker():
        assert [await task.result(60) for task in tasks] == [fields["version"] for fields in inputs]
    assert most == {"web": 1, "shop": 1, "mail": 1}
    assert (await tasks[0].get()).group == "web"
    assert await app.store.health.census() == []


async def test_a_free_place_is_taken_at_once(lab: Lab) -> None:
    times: list[tuple[float, float]] = []

    @lab.app.task(limit=Limit(concurrency=1))
    async def job(ctx: Any, n: int) -> None:
        begun = lab.clock.time
        await lab.clock.sleep(7.77)
        times.append((begun, lab.clock.time))

    ids = [await lab.submit(job, n) for n in range(4)]
    await lab.start()
    for task_id in ids:
        await lab.ended(task_id)
    gaps = [later[0] - before[1] for before, later in itertools.pairwise(times)]
    assert gaps == pytest.approx([0, 0, 0], abs=0.01), "no poll was waited for"


async def test_a_crash_frees_the_place(lab: Lab) -> None:
    gate, began = Gate(), []

    @lab.app.task(group="service", limit=Limit(concurrency=1))
    async def deploy(ctx: Any, service: str) -> str:
        began.append(ctx.task_id)
        if len(began) == 1:
            await gate()
        return service

    first, second = await lab.submit(deploy, "web"), await lab.submit(deploy, "web")
    await lab.start()
    await lab.clock.until(gate.reached.wait())
    await calm()
    assert (await lab.app.get(second)).reason == "quota"
    await lab.crash()
    await lab.start()
    assert (await lab.ended(second)).result == "web"
    assert (await lab.app.get(first)).state is State.COMPLETED
    assert began == [first, first, second]


async def test_a_task_that_waits_for_a_child_of_its_group_holds_no_place(lab: Lab) -> None:
    @lab.app.task(limit=Limit(concurrency=1))
    async def tree(ctx: Any, depth: int) -> int:
        return 0 if depth == 0 else 1 + await (await ctx.submit("tree", depth - 1))

    assert (await lab.run(tree, 4)).result == 4


async def test_a_failing_task_gives_its_place_to_others_between_its_attempts(lab: Lab) -> None:
    order: list[str] = []

    @lab.app.task(limit=Limit(concurrency=1), retry=2)
    async def job(ctx: Any, name: str) -> str:
        order.append(name)
        if name == "bad" and order.count("bad") == 1:
            raise OSError("not today")
        return name

    bad, good = await lab.submit(job, "bad"), await lab.submit(job, "good")
    await lab.start()
    assert (await lab.ended(good)).result == "good"
    assert (await lab.ended(bad)).result == "bad"
    assert order == ["bad", "good", "bad"]


@not_memory
async def test_a_queue_is_limited_over_all_workers(app: Onward) -> None:
    running = most = 0

    @app.task(queue="gpu")
    async def train(ctx: Any, n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.03)
        running -= 1

    app.limit_queue("gpu", concurrency=3)
    tasks = await app.submit_many(train, list(range(15)))
    async with app.worker(slots=5), app.worker(slots=5):
        for task in tasks:
            await task.result(60)
    assert most == 3
    app.limit_queue("gpu", concurrency=None)
    async with app.worker():
        assert await sql(app.store, "SELECT count(*) FROM onward_limits") == [(0,)]


# ── how many in a time ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_rate_is_kept_to_the_moment(lab: Lab) -> None:
    starts: dict[str, list[float]] = {"a": [], "b": []}
    zero = lab.clock.time

    @lab.app.task(group="tenant", limit=Limit(rate="3/m"))
    async def call(ctx: Any, tenant: str) -> None:
        starts[tenant].append(lab.clock.time - zero)

    ids = [await lab.submit(call, tenant) for tenant in ["a"] * 6 + ["b"] * 2]
    await lab.start()
    for task_id in ids:
        await lab.ended(task_id)
    assert starts["a"] == pytest.approx([0, 0, 0, 20, 40, 60], abs=0.1)
    assert starts["b"] == pytest.approx([0, 0], abs=0.1)


async def test_a_quick_rate_does_not_wait_for_polls(lab: Lab) -> None:
    zero = lab.clock.time

    @lab.app.task(limit=Limit(rate="10/s", burst=1))
    async def call(ctx: Any, n: int) -> float:
        return lab.clock.time - zero

    ids = [await lab.submit(call, n) for n in range(11)]
    await lab.start()
    last = max([(await lab.ended(task_id)).result for task_id in ids])
    assert last == pytest.approx(1.0, abs=0.1)


async def test_drain_moves_the_clock_over_a_rate() -> None:
    app = memory_app()

    @app.task(limit=Limit(rate="1/h"))
    async def report(ctx: Any, n: int) -> int:
        return n

    async with app:
        begun = app.clock.now()
        tasks = await app.submit_many(report, list(range(5)))
        assert await drain(app) == []
        assert [await task.result() for task in tasks] == list(range(5))
        assert app.clock.now() - begun == pytest.approx(4 * 3600, abs=60)


# ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def fairness(app: Onward, heavy: int) -> float:
    """The part of all tasks that had ended when the ten of a small tenant were done, with a big tenant submitted first."""
    ended: list[str] = []

    @app.task(group="tenant")
    async def work(ctx: Any, tenant: str) -> None:
        ended.append(tenant)

    await app.submit_many(work, ["big"] * heavy)
    small = await app.submit_many(work, ["small"] * 10)
    async with app.worker(slots=10):
        for task in small:
            await task.result(60)
        last = len(ended) - ended[::-1].index("small")
    return last / (heavy + 10)


async def test_ten_tasks_do_not_wait_for_a_thousand(app: Onward) -> None:
    assert await fairness(app, 2_000) <= 0.02


async def all_done(app: Onward) -> bool:
    return not any([(await app.list(state=state, limit=1))[0] for state in ("pending", "running")])


@pytest.mark.slow
@pytest.mark.usefixtures("at_length")
async def test_ten_tasks_do_not_wait_for_ten_thousand(app: Onward) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    ended: dict[str, float] = {}

    @app.task(group="tenant")
    async def work(ctx: Any, tenant: str) -> None:
        ended[tenant] = loop.time()

    await app.submit_many(work, ["big"] * 10_000)
    small = await app.submit_many(work, ["small"] * 10)
    async with app.worker():
        begun = loop.time()
        for task in small:
            await task.result(60)
        await eventually(lambda: all_done(app), 120)
    assert ended["small"] - begun <= 0.02 * (ended["big"] - begun)


# ── where a group comes from ─────────────────────────────────────────────────────────────────────────────────────────


async def test_the_group_of_a_task(lab: Lab) -> None:
    @lab.app.task(group="tenant")
    async def work(ctx: Any, tenant: str, size: int = 1) -> None: ...

    @lab.app.task
    async def plain(ctx: Any, tenant: str = "") -> None: ...

    async def group(*args: Any, **options: Any) -> str | None:
        return (await lab.app.get(await lab.submit(*args, **options))).group

    assert await group(work, "acme") == "acme"
    assert await group(work, {"tenant": "acme", "size": 3}) == "acme"
    assert await group(work, {"tenant": "acme"}, group="other") == "other"
    assert await group(plain, "acme") is None
    assert await group(plain, "acme", group="given") == "given"
    with pytest.raises(UsageError, match="group"):
        await lab.submit(plain, "x", group="")
    with pytest.raises(UsageError, match="has no argument 'nobody'"):
        lab.app.task(name="wrong", group="nobody")(work)


async def test_a_submit_of_another_process_knows_the_group(lab: Lab) -> None:
    """A process without the handler reads its group from a worker's registration."""

    @lab.app.task(group="number")
    async def work(ctx: Any, number: int) -> None: ...

    await lab.start()
    client_app = Onward(store=lab.store, clock=lab.clock)
    ids = await client_app.service.submit(
        [SubmitRequest("work", 7), SubmitRequest("work", {"number": 8}), SubmitRequest("work", 9, group="mine")]
    )
    assert [(await lab.app.get(task_id)).group for task_id in ids] == ["7", "8", "mine"]


async def test_the_same_key_with_another_group_is_other_work(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any) -> None: ...

    first = await lab.submit(work, key="k", group="a")
    assert await lab.submit(work, key="k", group="a") == first
    with pytest.raises(Exception, match="belongs to"):
        await lab.submit(work, key="k", group="b")


# ── the guide ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_guide_is_true(tmp_path: Path) -> None:
    ((name, code),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / name).write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["web 1", "shop 1"]
    assert done.stdout.endswith("shop 3\nsummary for acme\n")
