"""`onward encryption seal` as a process that is killed in the middle, beside workers; with the roles of PostgreSQL; and on payloads that
are larger than its memory may be."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.core.encryption import new_master_key
from onward.store.port.values import Batch
from rig.postgres import Postgres
from rig.processes import Child
from tests.encryption import crew
from tests.kit import begun, completion, entry, eventually, not_memory, only_postgres
from tests.roled import as_user, roled

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ORDERS = 30
MB = 1_000_000

RUN = """
import sys
from pathlib import Path
from onward.cli.main import main
status = main(sys.argv[1:])
print(*[line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")])
sys.exit(status)
"""
"""Runs a command, and prints the most memory that it had, in kB. (`getrusage` would have that of the process that started it.)"""


async def seal(url: str, key: str, crash: str = "", **settings: str) -> tuple[int, str]:
    """The exit status of the command, and its output."""
    env = {"ONWARD_ENCRYPTION_KEYS": key, "ONWARD_ENCRYPTION_LABEL": crew.LABEL, **settings}
    env |= {"ONWARD_CRASH": crash} if crash else {}
    with Child.code(RUN, "encryption", "seal", "--db", url, cwd=ROOT, env=env) as child:
        status = await asyncio.to_thread(child.wait, 120)
        return status, "\n".join([*child.lines, *child.errors])


async def contents_of(app: Onward, ids: list[str]) -> dict[str, Any]:
    """All that can be read of these tasks and their children."""
    read: dict[str, Any] = {}
    children = [child.id for child in await app.store.listing.offspring(ids, 1000)]
    for task_id in [*ids, *children]:
        task = await app.get(task_id)
        records = [(record.seq, record.kind, record.key, record.value) for record in await app.service.journal(task_id)]
        messages = [(message.id, bytes(message.data)) for message in await app.store.inbox(task_id)]
        artifacts = [await app.service.artifacts.read(task_id, ref.artifact_id) for ref in await app.artifacts(task_id)]
        read[task_id] = task.input, task.result, records, messages, artifacts
    return read


async def check_sealing(url: str, worker_url: str, owner_url: str, artifacts: str) -> None:
    """Orders are begun in plain, sealed by a command that is killed again and again while they go on, and compared."""
    settings = {"artifacts": artifacts}
    async with crew.build(worker_url, encryption_keys="", **settings) as app, app.worker():
        handles = [await app.submit("order", n, labels={crew.LABEL: f"p{n % 3}"}) for n in range(ORDERS)]
        for n, handle in enumerate(handles[: ORDERS // 2]):
            await app.signal(handle.id, "go", f"go {n}")
            await handle.result(60)
        ids = [handle.id for handle in handles]

        async def all_wait() -> bool:
            return (await app.stats()).states["waiting"] == ORDERS - ORDERS // 2

        await eventually(all_wait, 60)
        before = await contents_of(app, ids)
    key, kills = new_master_key("k1"), 0
    environment = {"ONWARD_ENCRYPTION_KEYS": key, "ONWARD_ARTIFACTS": artifacts, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with Child.module("tests.encryption.crew", worker_url, cwd=ROOT, env=environment) as worker:
        await asyncio.to_thread(worker.wait_for, "ready")
        async with crew.build(url, encryption_keys=key, **settings) as app:
            waiting = iter(range(ORDERS // 2, ORDERS))
            for point in ("seal.row:1", "seal.row:40", "seal.slice:3", "seal.slice:25", "seal.row:60", "seal.slice:40"):
                n = next(waiting)
                await app.signal(ids[n], "go", f"go {n}")
                status, output = await seal(owner_url, key, point, ONWARD_ARTIFACTS=artifacts)
                if status == 0:  # the worker beside it had written few plain payloads by then
                    break
                assert status == -9, output
                kills += 1
            assert kills >= 3
            status, output = await seal(owner_url, key, ONWARD_ARTIFACTS=artifacts)
            assert status == 0, output
            for n in waiting:
                await app.signal(ids[n], "go", f"go {n}")
            for n, task_id in enumerate(ids):
                assert (await app.service.result(task_id, timeout=60))[:-1] == crew.expected(n)
            status, output = await seal(owner_url, key, ONWARD_ARTIFACTS=artifacts)
            assert "encrypted 0 payloads" in output, output
    async with crew.build(url, encryption_keys=key, encryption_plain="refuse", **settings) as app:
        after = await contents_of(app, ids)
        assert await app.store.health.census() == []
    for task_id in ids[: ORDERS // 2]:
        assert after[task_id] == before[task_id], "ended tasks read as before"
    for task_id in ids[ORDERS // 2 :]:
        begun_records = before[task_id][2]
        assert after[task_id][2][: len(begun_records)] == begun_records, "and so do the first records of the others"


@not_memory
@pytest.mark.parametrize("shelf", ["database", "folder"])
async def test_a_kill_in_the_middle_loses_nothing(url: str, shelf: str, tmp_path: Path) -> None:
    await check_sealing(url, url, url, str(tmp_path / "artifacts") if shelf == "folder" else "database")


@only_postgres
async def test_the_same_with_the_roles_of_postgres(postgres: Postgres, url: str) -> None:
    owner = await asyncio.to_thread(roled, postgres, "sealed")
    user = as_user(owner, "does_both")
    await check_sealing(user, user, owner, "database")
    status, output = await seal(user, new_master_key("k2"))
    assert status not in {0, -9}, output


@not_memory
async def test_large_payloads_are_sealed_in_slices(url: str) -> None:
    """20 records of 6 MB: more than the memory that the command takes."""
    key = new_master_key("k1")
    async with Onward(url, encryption_keys="") as app:
        held = await begun(app.store)
        data = b'{"result":"%s"}' % (b"x" * 6 * MB)
        for n in range(1, 21):
            await app.store.save("w1", Batch([entry(held, n, data=data)]))
        await app.store.save("w1", completion(held, 21))
    status, output = await seal(url, key)
    assert status == 0, output
    peak = re.search(r"VmHWM:\s+(\d+) kB", output)
    assert peak is not None
    assert int(peak[1]) < 170_000, f"{int(peak[1]):,} kB"
    async with Onward(url, encryption_keys=key, encryption_plain="refuse") as app:
        records = [record.value["result"] for record in (await app.service.journal(held.id))[2:22]]
        assert {len(result) for result in records} == {6 * MB}
