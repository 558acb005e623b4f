"""The workers of a demo: real processes that it starts, kills with -9, and terminates at the end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from onward.demo import PARENT_VARIABLE
from onward.errors import OnwardError


class DemoFailed(OnwardError):
    """The demo did not reach its end."""

    code = "demo_failed"


class Kill(NamedTuple):
    """A killed worker: its number, its exit status, the time of the kill, the keys of the steps that the journal had then, and whether
    the task waited for a person."""

    worker: int
    status: int
    at: float
    recorded: tuple[str, ...] = ()
    waiting: bool = False


class DemoWorkers:
    """Worker processes of one app, one after the other."""

    def __init__(
        self,
        app: str,
        db: str,
        folder: Path,
        started: Callable[[int, int], None],
        queue: str,
        environment: Mapping[str, str] | None,
    ) -> None:
        self._command = ["-P", "-m", "onward", "worker", app, "--queues", queue, *(["--db", db] if db else [])]
        self._folder, self._started = folder, started
        self._environment = {**os.environ, **(environment or {}), PARENT_VARIABLE: str(os.getpid())}
        self._workers: list[subprocess.Popen[bytes]] = []
        self.working = False
        """Whether the newest worker should be alive."""

    def start(self) -> None:
        """Start one more worker."""
        number = len(self._workers) + 1
        with self._log(number).open("wb") as log:
            worker = subprocess.Popen(  # noqa: S603 -- our own interpreter, our own arguments
                [sys.executable, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        self._workers.append(worker)
        self.working = True
        self._started(number, worker.pid)

    def kill(self) -> Kill:
        """Kill the newest worker with signal 9."""
        victim = self._workers[-1]
        victim.kill()
        killed_at = time.time()
        self.working = False
        return Kill(len(self._workers), victim.wait(), killed_at)

    def check_alive(self) -> None:
        """Raises DemoFailed if the newest worker has ended by itself."""
        if self.working and self._workers[-1].poll() is not None:
            raise DemoFailed(f"worker {len(self._workers)} ended by itself; {self.log_tail()}")

    def log_tail(self) -> str:
        """The end of the log of the newest worker."""
        if not self._workers:
            return "no worker was started"
        log = self._log(len(self._workers)).read_text(encoding="utf-8", errors="replace").strip()
        return f"the end of its log: {log[-500:] or '(empty)'}"

    def _log(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"

    @contextlib.contextmanager
    def terminated(self) -> Iterator[None]:
        """All workers end with the block."""
        try:
            yield
        finally:
            for worker in self._workers:
                _end(worker)


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Terminate the worker, so that it leaves no trace in a database that is not ours; kill it if that takes too long."""
    worker.terminate()
    try:
        worker.wait(3)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
