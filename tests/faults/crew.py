"""The crew: the program in the processes that the fault tests kill, freeze and starve.

    python -m tests.faults.crew '{"mode": "lead", "db": "sqlite:///…", "ledger": "…", "workers": 8}'

lead     forks `workers` workers and forks another for each that dies, until SIGTERM; then all of them take their leave
submit   submits `count` stories and prints the acknowledged ones
once     submits and works in one process, then ends: small enough to be crashed at every single write

All tasks are stories: a list of acts, given as input, so that a test knows the result of each beforehand (`expected_answers`)
and every process can run every test's tasks. Each step notes in the ledger that it starts and that it ends. A process
reports events on its stdout, one line and one write() each.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import json
import logging
import mmap
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any, cast

import uvloop

from onward import Handle, Onward, Retry
from onward.core.clock import SystemClock
from onward.engine.worker.worker import Worker
from onward.errors import OnwardError, StoreUnavailable
from rig.ledger import Ledger

Act = dict[str, Any]
POLL_ID_S = 0.05
SETTINGS = {"offset", "lease_s", "heartbeat_s", "poll_s", "grace_s", "slots", "queue_limit"}


# ── stories ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def story(rng: random.Random, longest_ms: int = 100) -> list[Act]:
    """A story at random: a few steps, some in threads, some that fail at first, a sleep now and then."""
    acts: list[Act] = []
    for number in range(rng.randint(2, 6)):
        kind = rng.choices(["step", "thread", "flaky", "sleep", "nap"], [10, 4, 3, 1, 2])[0]
        act: Act = {"act": kind, "name": f"{kind}{number}", "ms": rng.randint(1, longest_ms)}
        if kind == "flaky":
            act["times"] = rng.randint(1, 2)
        if kind == "sleep":
            act["ms"] = rng.randint(1100, 1500)  # long enough to leave memory
        acts.append(act)
    if rng.random() < 0.15:
        acts.insert(rng.randrange(len(acts)), {"act": "trip", "times": 1})
    return acts


def expected_answers(acts: list[Act]) -> list[str]:
    """The result of a story when each of its steps counts exactly once."""
    return [f"{act['name']} done" for act in acts if act["act"] in STEPS]


STEPS = {"step", "thread", "flaky", "block", "hang", "exit", "kill", "segv"}


class MovedClock(SystemClock):
    """The machine's clock and an offset, which all processes read from one file: its wall time can be made to jump."""

    def __init__(self, path: str) -> None:
        super().__init__()
        with Path(path).open("rb") as file:
            offset = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
        self.now = lambda: time.time() + float(struct.unpack("d", offset)[0])


def build(db: str, ledger: str, offset: str | None = None, **settings: Any) -> Onward:
    """The app that all crews and clients share."""
    app = Onward(db, clock=None if offset is None else MovedClock(offset), **settings)
    book = Ledger(Path(ledger))

    @app.task(name="story", retry=Retry(attempts=4, first=0.05, cap=0.2))
    async def tell_story(ctx: Any, acts: Any) -> list[str]:
        return await _StoryRunner(ctx, book).run(acts)

    @app.task(name="once", retry=1)
    async def tell_once(ctx: Any, acts: Any) -> list[str]:
        """The same without a retry: an error wrongly counted as a failure ends the task."""
        return await _StoryRunner(ctx, book).run(acts)

    return app


class _StoryRunner:
    def __init__(self, ctx: Any, book: Ledger) -> None:
        self._ctx, self._book = ctx, book

    async def run(self, acts: list[Act]) -> list[str]:
        answers = []
        for act in acts:
            answer = await self._act(act)
            if answer is not None:
                answers.append(answer)
        return answers

    async def _act(self, act: Act) -> str | None:
        match act["act"]:
            case "sleep" | "nap":
                await self._ctx.sleep(act["ms"] / 1000, name=act["name"])
            case "trip":
                if self._ctx.attempt <= act["times"]:
                    raise RuntimeError("tripped")
            case "thread":
                return str(await self._ctx.step(self._in_thread, act, name=act["name"]))
            case "flaky":
                retry = Retry(attempts=act["times"] + 1, first=0.02, cap=0.05)
                return str(await self._ctx.step(self._flaky, act, name=act["name"], retry=retry))
            case "step" | "block" | "hang" | "exit" | "kill" | "segv":
                return str(await self._ctx.step(self._in_loop, act, name=act["name"]))
            case unknown:
                raise NotImplementedError(unknown)
        return None

    def _note(self, event: str) -> None:
        ctx = self._ctx
        key = ctx.key
        shift = ctx._host.hold.shift
        step = key.partition(":")[2]
        self._book.write(event, ctx.task_id, step, shift, ctx.attempt, os.getpid(), time.time(), key)

    async def _in_loop(self, act: Act) -> str:
        self._note("start")
        match act["act"]:
            case "block":
                end = time.monotonic() + act["ms"] / 1000
                while time.monotonic() < end:  # keeps the loop and a core busy
                    sum(range(1000))
            case "hang":
                if self._failed_before(act["name"]) == 0:  # the first time only, or the next worker would hang as well
                    _stand_still(act["ms"] / 1000)
            case "exit":
                os._exit(7)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segv":
                ctypes.string_at(0)
            case _:
                await asyncio.sleep(act["ms"] / 1000)
        self._note("end")
        return f"{act['name']} done"

    def _in_thread(self, act: Act) -> str:
        self._note("start")
        time.sleep(act["ms"] / 1000)
        self._note("end")
        return f"{act['name']} done"

    async def _flaky(self, act: Act) -> str:
        self._note("start")
        await asyncio.sleep(act["ms"] / 1000)
        if self._failed_before(act["name"]) < act["times"]:
            self._note("fail")
            raise ConnectionError("not this time")
        self._note("end")
        return f"{act['name']} done"

    def _failed_before(self, name: str) -> int:
        """Counts a failure of the step over all processes; returns how many there were before."""
        place = self._book.path.parent / "failures"
        place.mkdir(exist_ok=True)
        count = 0
        while True:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(place / f"{self._ctx.task_id}-{name}-{count}", os.O_CREAT | os.O_EXCL))
                return count
            count += 1


def _stand_still(seconds: float) -> None:
    time.sleep(seconds)


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def lead(options: dict[str, Any]) -> int:
    """Forks rather than starts its workers: they begin at once, and a thousand of them cost little."""
    if "program" in options:
        importlib.import_module(options["program"])  # once, before the forks
    crew: set[int] = set()
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        for pid in crew:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def begin() -> None:
        # Block SIGTERM: it would meet a child that still has its leader's handlers, or one that is not in `crew` yet.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        pid = os.fork()
        if pid == 0:
            os._exit(_in_child(options))
        crew.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    for _ in range(options["workers"]):
        begin()
    signal.signal(signal.SIGTERM, stop)
    status = 0
    while crew:
        pid, raw = os.waitpid(-1, 0)
        crew.discard(pid)
        code = os.waitstatus_to_exitcode(raw)
        say("died", pid, code)
        status = status or (code if stopping else 0)
        if not stopping:
            if code > 0:
                time.sleep(0.2)  # it could not start, or a story ended it: no tight loop
            begin()
            if stopping:
                stop()
    return status


def _in_child(options: dict[str, Any]) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a worker does not outlive its leader
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as `onward worker` does
            return runner.run(work(options))
    except OnwardError as error:
        logging.getLogger("crew").warning("could not start: %s", error)
        return 6
    except BaseException:
        logging.getLogger("crew").exception("a worker ended")
        return 70


def app_of(options: dict[str, Any]) -> Onward:
    settings = {k: v for k, v in options.items() if k in SETTINGS}
    if "program" in options:  # a crew for other tasks than stories
        return cast("Onward", importlib.import_module(options["program"]).app_of(options, **settings))
    return build(options["db"], options["ledger"], **settings)


async def work(options: dict[str, Any]) -> int:
    """Runs a worker until SIGTERM. Prints its name, and its new name after a rejoin."""
    app = app_of(options)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with app.worker(queues=options.get("queues", ())) as worker:
        name = worker.id
        say("ready", os.getpid(), name)
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_ID_S)
            if worker.id not in {name, ""}:
                name = worker.id
                say("renamed", os.getpid(), name)
    return 0


async def submit(options: dict[str, Any]) -> int:
    """Submits one story after another; each line is an acknowledgement, or the refusal that the client got."""
    app = app_of(options)
    rng = random.Random(options["seed"])
    async with app:
        say("ready", os.getpid())
        for number in range(options["count"]):
            key = f"{options['seed']}-{number}"
            acts = [{"act": "step", "name": "only", "ms": 0}] if options.get("plain") else story(rng)
            while True:
                try:
                    handle = await app.submit("story", {"acts": acts}, key=key)
                except StoreUnavailable as error:
                    say("refused", key, error)
                    await asyncio.sleep(0.05)
                else:
                    say("acked", key, handle.id)
                    break
    return 0


async def _insist(app: Onward, acts: list[Act], key: str) -> Handle:
    while True:
        try:
            return await app.submit("story", {"acts": acts}, key=key)
        except StoreUnavailable:
            await asyncio.sleep(0.02)


async def once(options: dict[str, Any]) -> int:
    """The whole life of a few stories, in one process; `acked` lines come before anything else is done with a task."""
    app = app_of(options)
    async with app:
        handles = []
        for number in range(options["count"]):
            acts = [
                {"act": "step", "name": "a", "ms": 1},
                {"act": "flaky", "name": "b", "ms": 1, "times": 1},
                {"act": "nap", "name": "c", "ms": 5},
                {"act": "thread", "name": "d", "ms": 1},
            ]
            handle = await _insist(app, acts, f"once-{number}")
            Ledger(Path(options["acks"])).write(handle.id, acts)
            handles.append(handle)
        worker = await _started(app)
        for handle in handles:
            await handle.result(timeout=60)
            Ledger(Path(options["acks"])).write(handle.id, "completed")
        await worker.stop()
    return 0


async def _started(app: Onward) -> Worker:
    """Starts a worker, again and again as a supervisor would, until the store is available."""
    while True:
        worker = app._make_worker()
        try:
            await worker.start()
        except StoreUnavailable:
            await asyncio.sleep(0.02)
        else:
            return worker


def main() -> int:
    options = json.loads(sys.argv[1])
    logging.basicConfig(
        level=options.get("log", "WARNING"),
        format="%(asctime)s.%(msecs)03d %(process)d %(message)s",
        datefmt="%H:%M:%S",
    )
    match options["mode"]:
        case "lead":
            return lead(options)
        case "submit":
            return asyncio.run(submit(options))
        case _:
            return asyncio.run(once(options))


if __name__ == "__main__":
    sys.exit(main())
