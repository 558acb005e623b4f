"""Runs a demo: a folder and a database of its own, the app, one task, workers that are killed on the way, then the report or the JSON
document."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import tempfile
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Generic, NamedTuple

from onward.app.application import Onward
from onward.cli.args.loading import load
from onward.cli.demo.proof import P
from onward.cli.demo.view import Board
from onward.cli.demo.workers import DemoFailed, DemoWorkers, Kill
from onward.cli.output.screen import Screen
from onward.config import variable
from onward.core.record import STEP_DONE, Record
from onward.core.task import Task
from onward.demo import QUEUE
from onward.errors import OnwardError

POLL_S = 0.02


class Stage(NamedTuple):
    """The place where a demo plays: its app, the URL of its database (empty on another engine), and its folder."""

    app: Onward
    db: str
    folder: Path


async def run_demo(args: Namespace, screen: Screen, target: str, make: Callable[[Stage], Demo[P]]) -> int:
    """Play a demo of the app `target`, as in MODULE:APP. Returns the exit status."""
    keep = getattr(args, "keep", False)
    with interrupt_on_sigterm(), demo_folder(screen, keep=keep) as folder:
        own = "" if os.environ.get(variable("engine")) else f"sqlite:///{folder / 'onward.db'}"
        db = args.db or own
        async with load(target, db or None) as app:
            demo = make(Stage(app, db, folder))
            proof = await demo.run()
            if screen.json:
                screen.document(proof.as_json())
            else:
                demo.board.report(proof)
                if keep and own and args.db is None:
                    screen.say((f"onward show {proof.task.task_id[-8:]} --db {shlex.quote(db)}", "dim"))
    return 0 if proof.holds else 1


class Demo(abc.ABC, Generic[P]):
    """One task, and real workers that are killed on the way. Each demo says when to kill, and what that proves."""

    target: str
    """The app, as in MODULE:APP."""
    request: tuple[str, Any]
    """The name and the input of the task."""
    timeout_s = 60.0
    """Time after which the demo gives up, without the time of people. It takes about ten seconds."""

    def __init__(
        self, stage: Stage, board: Board[P], *, queue: str = QUEUE, environment: Mapping[str, str] | None = None
    ) -> None:
        self.app, self.board, self._queue = stage.app, board, queue
        self.workers = DemoWorkers(self.target, stage.db, stage.folder, board.started, queue, environment)
        self.kills: list[Kill] = []
        self._shown_seq = 0

    async def run(self) -> P:
        """Play, and collect the proof."""
        with self.workers.terminated():
            task_id = (await self.app.submit(*self.request, queue=self._queue)).id
            async with self._cancelled_on_error(task_id):
                with self.board.shown(task_id):
                    task = await self._play(task_id)
        return self.proof(task, await self.app.service.timelines.all(task_id))

    async def _play(self, task_id: str) -> Task:
        self.workers.start()
        end = time.monotonic() + self.timeout_s
        while not (task := await self.app.get(task_id)).ended:
            self.workers.check_alive()
            await self._show_new_records(task_id)
            end += await self.act(task)
            if time.monotonic() > end:
                raise DemoFailed(f"the demo did not end within {self.timeout_s:g} s; {self.workers.log_tail()}")
            await asyncio.sleep(POLL_S)
        await self._show_new_records(task_id)
        return task

    async def _show_new_records(self, task_id: str) -> None:
        for record in await self.app.service.journal(task_id, self._shown_seq):
            self._shown_seq = record.seq
            await self.show(task_id, record)

    async def kill(self, task_id: str, where: str, *, waiting: bool = False) -> None:
        """Kill the newest worker, and note the steps that the journal has then."""
        kill = self.workers.kill()
        records = await self.app.service.timelines.all(task_id)
        recorded = tuple(record.key for record in records if record.kind == STEP_DONE)
        self.kills.append(kill._replace(recorded=recorded, waiting=waiting))
        self.board.killed(where)

    @contextlib.asynccontextmanager
    async def _cancelled_on_error(self, task_id: str) -> AsyncIterator[None]:
        """Cancel the task if the demo stops early: its folder is deleted, so no other worker may continue it."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OnwardError):
                await self.app.cancel(task_id)
            raise

    # ── the parts of each demo ───────────────────────────────────────────────────────────────────────────────────

    @abc.abstractmethod
    async def act(self, task: Task) -> float:
        """Kill a worker, or ask a person, if it is time to. Returns the seconds that people took."""

    @abc.abstractmethod
    async def show(self, task_id: str, record: Record) -> None:
        """Show one more record."""

    @abc.abstractmethod
    def proof(self, task: Task, records: list[Record]) -> P:
        """The proof, from the ended task and its journal."""


@contextlib.contextmanager
def demo_folder(screen: Screen, *, keep: bool) -> Iterator[Path]:
    """A temporary folder, deleted at the end unless `keep` is set."""
    folder = Path(tempfile.mkdtemp(prefix="onward-demo-")).resolve()
    try:
        yield folder
    finally:
        if keep:
            screen.aside((f"kept: {folder} (the disk, its ledger, the database and the logs of the workers)", "dim"))
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """A SIGTERM ends the demo as Ctrl-C does, with its workers."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
