"""SQLite and its file: crashed at every single write, without room on the disk, and with many processes at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from onward.errors import StoreUnavailable
from rig.ledger import Ledger
from rig.processes import Child
from tests.faults.band import ROOT, Client, Crew, Place, until_all_ended
from tests.faults.crew import Act

pytestmark = pytest.mark.slow

POINTS = {"pwrite64": "a write", "fdatasync": "a sync"}


# ── crashes at every write ───────────────────────────────────────────────────────────────────────────────────────────


def _strace(place: Place, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the mode `once` of the crew under strace."""
    options_json = place.options("once", count=2, acks=str(place.home / "acks"), slots=5, poll_s=0.02)
    return subprocess.run(
        ["strace", "-f", "-qq", *options, sys.executable, "-m", "tests.faults.crew", options_json],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
    )


@pytest.fixture(scope="module")
def tracing() -> None:
    if shutil.which("strace") is None:
        pytest.skip("there is no strace here to crash a process at a chosen write with")
    tried = subprocess.run(
        ["strace", "-f", "-qq", "-e", "inject=getcwd:signal=SIGKILL:when=1", "pwd", "-P"],
        capture_output=True,
        check=False,
    )
    if tried.returncode not in {-signal.SIGKILL, 137}:
        pytest.skip("strace may not trace here (ptrace is forbidden)")


@pytest.mark.parametrize("call", POINTS)
async def test_crash_at_every_write(
    tmp_path: Path, tracing: None, call: str, prove: bool, print_proof: Callable[..., None]
) -> None:
    """Killed at the k-th write for every k: acknowledged tasks are there, the file is sound, and all tasks go on."""
    total = _count(_place(tmp_path / "whole"), call)
    assert total > 10, "VOID: nothing was written"
    points = range(1, total + 1) if prove else sorted(random.Random(18).sample(range(1, total + 1), 4))
    crashed = acked = 0
    for point in points:
        place = _place(tmp_path / f"at{point}")
        ended = _strace(place, "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={point}")
        crashed += ended.returncode in {-signal.SIGKILL, 137}
        acked += await _goes_on(place)
        shutil.rmtree(place.home)
    print_proof(
        f"crash at {POINTS[call]}",
        "sqlite",
        f"{crashed} of {total} points",
        f"{acked} acknowledged tasks, 0 lost, file sound",
    )
    assert crashed > len(points) / 2, "VOID: it was hardly ever killed"
    assert acked


ERRORS = {
    "ENOSPC at a write": ("pwrite64", "ENOSPC"),
    "EIO at a write": ("pwrite64", "EIO"),
    "EIO at a sync": ("fdatasync", "EIO"),
}


@pytest.mark.parametrize("error_case", ERRORS)
async def test_error_at_every_write(
    tmp_path: Path, tracing: None, error_case: str, prove: bool, print_proof: Callable[..., None]
) -> None:
    """The k-th write fails, once, and the process lives on: it tries again, and in the end all is done, once. (The tables
    exist before: a process that cannot create them ends with an error, and creating them is most of the writes.)"""
    call, error = ERRORS[error_case]
    total = _count(await _made(tmp_path / "whole"), call)
    points = range(1, total + 1) if prove else sorted(random.Random(26).sample(range(1, total + 1), 4))
    survived = 0
    for point in points:
        place = await _made(tmp_path / f"at{point}")
        ended = _strace(place, "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={point}")
        acks = Ledger(place.home / "acks").read()
        survived += ended.returncode == 0
        assert ended.returncode == 0 or not acks, f"it gave up at point {point}:\n{ended.stderr[-2000:]}"
        await _goes_on(place)
        shutil.rmtree(place.home)
    print_proof(
        error_case,
        "sqlite",
        f"{survived} of {len(points)} points survived, the others before anything was acknowledged",
    )
    assert survived > len(points) / 2


def _place(home: Path) -> Place:
    home.mkdir()
    return Place("sqlite", f"sqlite:///{home / 'onward.db'}", home)


async def _made(home: Path) -> Place:
    """A place whose database has its tables."""
    place = _place(home)
    async with place.app():
        return place


def _count(place: Place, call: str) -> int:
    """The number of such calls of the thread with most of them: strace counts for each thread by itself."""
    trace = place.home / "trace"
    done = _strace(place, "-e", f"trace={call}", "-o", str(trace))
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = {}
    for line in trace.read_text().splitlines():
        if match := re.match(rf"(\d+) +{call}\(", line):
            counts[match[1]] = counts.get(match[1], 0) + 1
    return max(counts.values())


async def _goes_on(place: Place) -> int:
    """Reopens after the crash and ends the unfinished tasks; returns how many had been acknowledged."""
    acks = Ledger(place.home / "acks").read()
    acked = {line[0]: line[1] for line in acks if line[1] != "completed"}
    completed = {line[0] for line in acks if line[1] == "completed"}
    if not (place.home / "onward.db").exists():
        assert not acked
        return 0
    connection = apsw.Connection(str(place.home / "onward.db"))
    assert list(connection.execute("PRAGMA integrity_check")) == [("ok",)]
    connection.close()
    async with place.app(poll_s=0.02) as app:
        before = place.look()
        assert acked.keys() <= before.tasks, "an acknowledged task is gone"
        assert completed <= before.outcomes.keys(), "a result that a client read is gone"
        async with app.worker(slots=5):
            for task_id in before.tasks:
                await app.handle(task_id).result(timeout=60)
    (await place.judge(acked)).must_be_clean() if acked else None
    return len(acked)


# ── no room ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight megabytes."""
    home = tmp_path / "small"
    home.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(home)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield home
    finally:
        subprocess.run(["umount", "-l", str(home)], check=False)


async def test_disk_full(small_disk: Path, tmp_path: Path, print_proof: Callable[..., None]) -> None:
    """The disk fills up under a working worker: submits are refused with the reason, no acknowledged task is lost, and
    when there is room again the same worker goes on."""
    place = Place("sqlite", f"sqlite:///{small_disk / 'onward.db'}", tmp_path)
    client = Client(place.app(), random.Random(19))
    refusals: list[str] = []
    async with client.app:
        with Crew(place, 1, lease_s=2.0, heartbeat_s=0.4).ready(1) as crew:
            pid = next(iter(crew.alive))
            for _ in range(10):  # these run when the disk is full
                await client.submit([{"act": "step", "name": f"s{number}", "ms": 300} for number in range(5)])
            await asyncio.sleep(0.5)
            ballast = small_disk / "ballast"
            with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * 4096)
            end = time.monotonic() + 30
            while len(refusals) < 5 and time.monotonic() < end:
                try:
                    handle = await client.app.submit("story", {"acts": _story("x" * 2000)})
                except StoreUnavailable as error:
                    refusals.append(error.code)
                    await asyncio.sleep(0.3)
                else:
                    client.acked[handle.id] = _story("x" * 2000)
            await asyncio.sleep(3)  # longer than the lease
            known = len(place.look().tasks)
            ballast.unlink()
            start = time.monotonic()
            after = await client.submit(_story("after"))
            await client.app.handle(after).result(timeout=60)
            recovered = time.monotonic() - start
            await until_all_ended(place, 30)
            alive = list(crew.alive)
            await asyncio.to_thread(crew.stop)
    verdict = await place.judge(client.acked)
    print_proof(
        "disk full",
        "sqlite",
        f"{known} tasks before",
        f"{len(refusals)} refused ({refusals[-1]})",
        f"recovered {recovered:.1f} s after there was room",
        verdict,
    )
    verdict.must_be_clean()
    assert set(refusals) == {"disk_full"}
    assert alive == [pid], f"the worker did not live through it\n{crew.log}"


def _story(name: str) -> list[Act]:
    return [{"act": "step", "name": f"{name[:10]}{number}", "ms": 5, "pad": name} for number in range(3)]


async def test_file_size_limit(tmp_path: Path) -> None:
    """The same without root: the system limits the size of the file for a while."""
    place = _place(tmp_path / "limited")
    code = "import resource, sys; from tests.faults.crew import main; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY)); sys.exit(main())"
    options = place.options("lead", workers=1, lease_s=2.0, heartbeat_s=0.4)
    client = Client(place.app(), random.Random(20))
    async with client.app:
        with Child("-c", code, options, cwd=ROOT) as leader:
            words = (await asyncio.to_thread(leader.wait_for, "ready", 20)).split()
            for _ in range(150):  # the client is not limited, so that the worker meets a file that is too long for it
                await client.submit([{"act": "step", "name": "s", "ms": 1, "pad": "x" * 3000}])
            await asyncio.sleep(3)
            resource.prlimit(int(words[1]), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await until_all_ended(place, 40)
            assert "died" not in "".join(leader.lines)
            assert any("cannot be" in line or "no room" in line for line in leader.errors), "VOID: it was never refused"
    (await place.judge(client.acked)).must_be_clean()


# ── many at once ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("processes", [2, 8])
async def test_many_processes_submit(
    sqlite: Place, processes: int, prove: bool, print_proof: Callable[..., None]
) -> None:
    """All of them into a file that does not exist yet, with a worker in between; no process gets an error about locks."""
    count = 500 if prove else 60
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        crew = stack.enter_context(Crew(sqlite, 1, slots=50))
        children = [
            stack.enter_context(sqlite.child("submit", seed=seed, count=count, plain=True)) for seed in range(processes)
        ]
        statuses = [await asyncio.to_thread(child.wait, 240) for child in children]
        took = time.monotonic() - start
        lines = [line.split(" ", 2) for child in children for line in child.lines]
        await until_all_ended(sqlite, 60)
        await asyncio.to_thread(crew.stop)
    acked: dict[str, list[Act]] = {
        words[2]: [{"act": "step", "name": "only", "ms": 0}] for words in lines if words[0] == "acked"
    }
    refused = [words for words in lines if words[0] == "refused"]
    verdict = await sqlite.judge(acked)
    print_proof(
        f"{processes} processes submit",
        f"{len(acked)} acknowledged",
        f"{len(refused)} refused",
        f"{took:.1f} s",
        verdict,
    )
    assert statuses == [0] * processes, [child.errors[-5:] for child in children]
    assert not refused
    assert len(acked) == processes * count
    verdict.must_be_clean()


async def test_many_processes_open_a_new_file(sqlite: Place) -> None:
    """Eight processes open a file at once that has no tables and no log yet."""
    for round_ in range(3):
        place = _place(sqlite.home / f"round{round_}")
        with contextlib.ExitStack() as stack:
            children = [stack.enter_context(place.child("submit", seed=seed, count=1)) for seed in range(8)]
            assert [await asyncio.to_thread(child.wait, 60) for child in children] == [0] * 8
        assert len(place.look().tasks) == 8
        assert os.stat(place.home / "onward.db").st_mode & 0o777 == 0o600
