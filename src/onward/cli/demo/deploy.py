"""demo: a real worker is killed with -9 in the middle of a deploy, and another one goes on. Only the moment of the kill is chosen: the
ledger of the cloud shows when a step has had its effect and its record is not written yet."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from pathlib import Path

from onward.app.application import Onward
from onward.cli.demo.deploy_proof import DeployProof
from onward.cli.demo.deploy_view import DeployBoard, print_report
from onward.cli.demo.runner import run_demo
from onward.cli.demo.workers import DemoFailed, DemoWorkers
from onward.cli.output.screen import Screen
from onward.core.record import STEP_DONE
from onward.core.task import Task
from onward.demo.deploy import FATAL_STEP, TASK, Cloud

APP = "onward.demo.deploy:app"
DEMO_TIMEOUT_S = 60.0
"""The demo takes about ten seconds."""


async def demo(args: Namespace) -> int:
    """`onward demo`."""
    screen = Screen(args)

    async def play(app: Onward, db: str, folder: Path) -> DeployProof:
        return await _Play(screen, app, db, folder).run()

    return await run_demo(args, screen, APP, play, print_report)


class _Play:
    """Two workers, one deploy, one kill."""

    def __init__(self, screen: Screen, app: Onward, db: str, folder: Path) -> None:
        self._app, self._folder = app, folder / "cloud"
        self._cloud = Cloud(self._folder)
        self._board = DeployBoard(screen)
        self._workers = DemoWorkers(APP, db, folder, self._board.started)

    async def run(self) -> DeployProof:
        """Play, and collect the proof."""
        try:
            with self._workers.terminated():
                async with asyncio.timeout(DEMO_TIMEOUT_S):
                    return await self._play()
        except TimeoutError:
            raise DemoFailed(f"the demo did not end within {DEMO_TIMEOUT_S:g} s; {self._workers.log_tail()}") from None

    async def _play(self) -> DeployProof:
        board, workers = self._board, self._workers
        handle = await self._app.submit(TASK, {"service": "shop", "cloud": str(self._folder)})
        with board.shown(handle.id):
            watching = asyncio.ensure_future(self._watch(handle.id))
            try:
                workers.start()
                await self._until_effect(FATAL_STEP)
                kill = workers.kill()
                recorded = [r.key for r in await self._app.service.timelines.all(handle.id) if r.kind == STEP_DONE]
                board.worker_killed()
                workers.start()
                task = await self._until_ended(handle.id)
                await watching
            finally:
                watching.cancel()
        records = await self._app.service.timelines.all(handle.id)
        requests = self._cloud.ledger.lines()
        return DeployProof(task, records, requests, self._cloud.count(), kill.status, kill.at, recorded)

    async def _watch(self, task_id: str) -> None:
        async for record in self._app.service.tail(task_id):
            self._board.record(record)

    async def _until_effect(self, step: str) -> None:
        """Wait until the ledger has the effect of the step."""
        while not any(request["what"].startswith(step) for request in self._cloud.ledger.lines()):
            self._workers.check_alive()
            await asyncio.sleep(0.01)

    async def _until_ended(self, task_id: str) -> Task:
        while not (task := await self._app.get(task_id)).ended:
            self._workers.check_alive()
            await asyncio.sleep(0.05)
        return task
