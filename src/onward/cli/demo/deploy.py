"""demo: a real worker is killed with -9 in the middle of a deploy, and another one goes on. Nothing here is staged but the
moment of the kill: the cloud's ledger tells when the effect of the step has happened, and its record has not."""

from __future__ import annotations

import asyncio
import tempfile
from argparse import Namespace
from pathlib import Path

from onward.app.application import Onward
from onward.cli.args.loading import load
from onward.cli.commands.tasks import journal
from onward.cli.demo.deploy_proof import Proof
from onward.cli.demo.deploy_view import Board, print_ending, print_proof
from onward.cli.demo.workers import Crew, DemoFailed, terminable
from onward.cli.output.screen import Screen
from onward.core.record import STEP_DONE
from onward.core.task import Task
from onward.demo.deploy import FATAL_STEP, TASK, Cloud

APP = "onward.demo.deploy:app"
PATIENCE = 60.0
"""Seconds after which the demo gives up. It takes about ten."""


async def demo(args: Namespace) -> int:
    """`onward demo`."""
    screen = Screen(args)
    with terminable(), tempfile.TemporaryDirectory(prefix="onward-demo-", ignore_cleanup_errors=True) as folder:
        db = args.db or f"sqlite:///{Path(folder) / 'onward.db'}"
        async with load(APP, db) as app:
            play = _Play(screen, app, db, Path(folder))
            proof = await play.to_the_end()
            if screen.json:
                screen.document(proof.as_json())
            else:
                print_proof(screen, proof)
                print_ending(screen, proof)
    return 0 if proof.holds else 1


class _Play:
    """Two workers, one deploy, one kill."""

    def __init__(self, screen: Screen, app: Onward, db: str, folder: Path) -> None:
        self._app, self._folder = app, folder / "cloud"
        self._cloud = Cloud(self._folder)
        self._board = Board(screen)
        self._crew = Crew(APP, db, folder, self._board.started)

    async def to_the_end(self) -> Proof:
        """Play, and find out what can be proven."""
        try:
            with self._crew.cleared_away():
                async with asyncio.timeout(PATIENCE):
                    return await self._play()
        except TimeoutError:
            raise DemoFailed(f"the demo did not end within {PATIENCE:g} s; {self._crew.last_words()}") from None

    async def _play(self) -> Proof:
        board, crew = self._board, self._crew
        handle = await self._app.submit(TASK, {"service": "shop", "cloud": str(self._folder)})
        with board.shown(handle.id):
            watching = asyncio.ensure_future(self._watch(handle.id))
            try:
                crew.start()
                await self._effect_of(FATAL_STEP)
                kill = crew.kill()
                recorded = [r.key for r in await journal(self._app.service, handle.id) if r.kind == STEP_DONE]
                board.killed()
                crew.start()
                task = await self._ended(handle.id)
                await watching
            finally:
                watching.cancel()
        records = await journal(self._app.service, handle.id)
        return Proof(task, records, self._cloud.ledger.lines(), self._cloud.count(), kill.status, kill.at, recorded)

    async def _watch(self, task_id: str) -> None:
        async for record in self._app.service.tail(task_id):
            self._board.record(record)

    async def _effect_of(self, step: str) -> None:
        """Until the ledger says that the step has had its effect."""
        while not any(request["what"].startswith(step) for request in self._cloud.ledger.lines()):
            self._crew.must_live()
            await asyncio.sleep(0.01)

    async def _ended(self, task_id: str) -> Task:
        while not (task := await self._app.get(task_id)).ended:
            self._crew.must_live()
            await asyncio.sleep(0.05)
        return task
