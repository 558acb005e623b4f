"""The workers of a demo: real processes, started, killed with -9 and cleared away. Both demos share it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from onward.demo import PARENT_VARIABLE, QUEUE
from onward.errors import OnwardError


class DemoFailed(OnwardError):
    """The demo could not be played to its end."""

    code = "demo_failed"


class Kill(NamedTuple):
    """A worker that was killed: its number, its exit status, and when."""

    worker: int
    status: int
    at: float


class Crew:
    """Worker processes of one app, one after the other."""

    def __init__(
        self,
        app: str,
        db: str,
        folder: Path,
        started: Callable[[int, int], None],
        *,
        queue: str = QUEUE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._app, self._db, self._folder, self._started = app, db, folder, started
        self._queue = queue
        self._environment = {**os.environ, **(environment or {}), PARENT_VARIABLE: str(os.getpid())}
        self._workers: list[subprocess.Popen[bytes]] = []
        self.working = False
        """Whether the last one should be alive."""

    def start(self) -> None:
        """One more."""
        number = len(self._workers) + 1
        command = ["-P", "-m", "onward", "worker", self._app, "--queues", self._queue, "--db", self._db]
        with self._log(number).open("wb") as log:
            worker = subprocess.Popen(  # noqa: S603 -- our own interpreter, our own arguments
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        self._workers.append(worker)
        self.working = True
        self._started(number, worker.pid)

    def kill(self) -> Kill:
        """End the last one as a power cut would."""
        victim = self._workers[-1]
        victim.kill()
        killed_at = time.time()
        self.working = False
        return Kill(len(self._workers), victim.wait(), killed_at)

    def must_live(self) -> None:
        """Raises when the last one has ended by itself."""
        if self.working and self._workers[-1].poll() is not None:
            raise DemoFailed(f"worker {len(self._workers)} ended by itself; {self.last_words()}")

    def last_words(self) -> str:
        """What the last one wrote."""
        if not self._workers:
            return "no worker was started"
        said = self._log(len(self._workers)).read_text(encoding="utf-8", errors="replace").strip()
        return f"its last words: {said[-500:] or '(none)'}"

    def _log(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"

    @contextlib.contextmanager
    def cleared_away(self) -> Iterator[None]:
        """None of them outlives the block."""
        try:
            yield
        finally:
            for worker in self._workers:
                _end(worker)


def _end(worker: subprocess.Popen[bytes]) -> None:
    """In good order, so that a database which is not ours keeps no trace of it; by force when that takes too long."""
    worker.terminate()
    try:
        worker.wait(3)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """A SIGTERM ends the demo as Ctrl-C does, workers and all."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
