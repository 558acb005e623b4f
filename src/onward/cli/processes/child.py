"""The side of the process: reports to its supervisor, and ends when the supervisor is gone.

The supervisor holds one end of a pipe, the lifeline, and the process the other. When the supervisor dies, also by kill -9, the system closes
its end; this works on every system with pipes. The process then stops as after SIGTERM, and hands its tasks back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from typing import Any, Protocol

VARIABLE = "ONWARD_SUPERVISED"
"""The environment variable with the file descriptors of a supervised process: its lifeline, and the pipe for reports."""

REPORT_S = 0.5
"""Seconds between two reports."""

EXTRA_GRACE_S = 5.0
"""Seconds after its grace in which a process without a supervisor has to end. Then it exits at once: its event loop hangs."""


class Counts(Protocol):
    """The numbers of a worker."""

    slots: int
    finished: int

    @property
    def running(self) -> int:
        """How many tasks it does now."""
        ...


class Supervised:
    """A process that has a supervisor."""

    def __init__(self, lifeline: int, reports: int) -> None:
        self._lifeline, self._reports = lifeline, reports
        for pipe in (lifeline, reports):
            os.set_inheritable(pipe, False)  # programs that a handler starts do not get them
        os.set_blocking(reports, False)

    def watch(self, grace_s: float) -> None:
        """End this process when the supervisor is gone: within `grace_s` and a few seconds."""
        threading.Thread(target=self._watch, args=[grace_s], name="onward-lifeline", daemon=True).start()

    def _watch(self, grace_s: float) -> None:
        with contextlib.suppress(OSError):
            while os.read(self._lifeline, 1):
                pass
        _discard_output()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s + EXTRA_GRACE_S)
        os._exit(1)

    def report(self, **facts: Any) -> None:
        """Send facts to the supervisor; they are dropped where it does not read them."""
        with contextlib.suppress(OSError):
            os.write(self._reports, json.dumps(facts).encode() + b"\n")

    @contextlib.asynccontextmanager
    async def reporting(self, worker: Counts | None) -> AsyncIterator[None]:
        """Report that the process is ready, and then its numbers, while the block lasts."""
        self.report(ready=True)
        task = asyncio.ensure_future(self._repeat(worker)) if worker is not None else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _repeat(self, worker: Counts) -> None:
        last: tuple[int, int] | None = None
        while True:
            numbers = worker.running, worker.finished
            if numbers != last:
                self.report(running=worker.running, slots=worker.slots, finished=worker.finished)
                last = numbers
            await asyncio.sleep(REPORT_S)


def attach() -> Supervised | None:
    """The supervisor of this process; None for a process without one. Programs that this process starts do not see the variable."""
    given = os.environ.pop(VARIABLE, None)
    if given is None:
        return None
    lifeline, _, reports = given.partition(",")
    return Supervised(int(lifeline), int(reports))


@contextlib.asynccontextmanager
async def reporting(supervised: Supervised | None, worker: Counts | None) -> AsyncIterator[None]:
    """Report to the supervisor, where there is one, while the block lasts."""
    async with supervised.reporting(worker) if supervised is not None else contextlib.nullcontext():
        yield


def _discard_output() -> None:
    """The supervisor may have read the output of this process: without a reader each print of a handler would raise."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if _is_broken(stream):
            os.dup2(null, stream)
    os.close(null)


def _is_broken(stream: int) -> bool:
    """Whether nothing reads this pipe any more."""
    import select  # noqa: PLC0415 -- only when the supervisor is gone

    poll = select.poll()
    poll.register(stream, 0)
    return any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))
