"""demo: a real worker is killed with -9 in the middle of a deploy, and another one goes on. Nothing here is staged but the
moment of the kill: the cloud's ledger tells when the effect of the step has happened, and its record has not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import FrameType

from onward.app import Onward
from onward.cli.demo_view import Board, print_ending, print_proof
from onward.cli.loading import load
from onward.cli.proof import Proof
from onward.cli.screen import Screen
from onward.cli.tasks import journal
from onward.core.record import STEP_DONE
from onward.core.task import Task
from onward.demo import FATAL_STEP, PARENT, QUEUE, TASK, Cloud
from onward.errors import OnwardError

PATIENCE = 60.0
"""Seconds after which the demo gives up. It takes about ten."""


class DemoFailed(OnwardError):
    """The demo could not be played to its end."""

    code = "demo_failed"


async def demo(args: Namespace) -> int:
    """`onward demo`."""
    screen = Screen(args)
    with _terminable(), tempfile.TemporaryDirectory(prefix="onward-demo-", ignore_cleanup_errors=True) as folder:
        db = args.db or f"sqlite:///{Path(folder) / 'onward.db'}"
        async with load("onward.demo:app", db) as app:
            play = _Play(screen, app, db, Path(folder))
            proof = await play.to_the_end()
            if screen.json:
                screen.document(proof.as_json())
            else:
                print_proof(screen, proof)
                print_ending(screen, proof)
    return 0 if proof.holds else 1


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """A SIGTERM ends the demo as Ctrl-C does, workers and all."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Play:
    """Two workers, one deploy, one kill."""

    def __init__(self, screen: Screen, app: Onward, db: str, folder: Path) -> None:
        self._app, self._db, self._folder = app, db, folder
        self._cloud = Cloud(folder / "cloud")
        self._board = Board(screen)
        self._workers: list[subprocess.Popen[bytes]] = []

    async def to_the_end(self) -> Proof:
        """Play, and find out what can be proven."""
        try:
            async with asyncio.timeout(PATIENCE), self._clean_up():
                return await self._play()
        except TimeoutError:
            raise DemoFailed(f"the demo did not end within {PATIENCE:g} s; {self._last_words()}") from None

    async def _play(self) -> Proof:
        board = self._board
        handle = await self._app.submit(TASK, {"service": "shop", "cloud": str(self._cloud.ledger.parent)})
        with board.shown(handle.id):
            watching = asyncio.ensure_future(self._watch(handle.id))
            try:
                victim = self._start_worker()
                await self._effect_of(FATAL_STEP)
                victim.kill()
                killed_at, status = time.time(), victim.wait()
                recorded = [r.key for r in await journal(self._app.service, handle.id) if r.kind == STEP_DONE]
                board.killed()
                self._start_worker()
                task = await self._ended(handle.id)
                await watching
            finally:
                watching.cancel()
        records = await journal(self._app.service, handle.id)
        return Proof(task, records, list(self._cloud.requests()), self._cloud.count(), status, killed_at, recorded)

    async def _watch(self, task_id: str) -> None:
        async for record in self._app.service.tail(task_id):
            self._board.record(record)

    async def _effect_of(self, step: str) -> None:
        """Until the ledger says that the step has had its effect."""
        while not any(request["what"].startswith(step) for request in self._cloud.requests()):
            self._must_live()
            await asyncio.sleep(0.01)

    async def _ended(self, task_id: str) -> Task:
        while not (task := await self._app.get(task_id)).ended:
            self._must_live()
            await asyncio.sleep(0.05)
        return task

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_worker(self) -> subprocess.Popen[bytes]:
        number = len(self._workers) + 1
        command = ["-P", "-m", "onward", "worker", "onward.demo:app", "--queues", QUEUE, "--db", self._db]
        with self._log(number).open("wb") as log:
            worker = subprocess.Popen(  # noqa: S603 -- our own interpreter, our own arguments
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, PARENT: str(os.getpid())},
            )
        self._workers.append(worker)
        self._board.started(number, worker.pid)
        return worker

    def _log(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"

    def _must_live(self) -> None:
        if self._workers[-1].poll() is not None:
            raise DemoFailed(f"worker {len(self._workers)} ended by itself; {self._last_words()}")

    def _last_words(self) -> str:
        if not self._workers:
            return "no worker was started"
        said = self._log(len(self._workers)).read_text(encoding="utf-8", errors="replace").strip()
        return f"its last words: {said[-500:] or '(none)'}"

    @contextlib.asynccontextmanager
    async def _clean_up(self) -> AsyncIterator[None]:
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
