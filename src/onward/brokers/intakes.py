"""All intakes of a process: starts and stops them together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Any

from onward.brokers.intake import CANCEL_TIMEOUT_S, Intake, IntakeSpec
from onward.core.clock import Clock
from onward.core.shutdown import end_tasks
from onward.engine.background import Spawn

log = logging.getLogger("onward.intake")


class Intakes:
    """All intakes of a process."""

    def __init__(self, intakes: Sequence[Intake], clock: Clock, spawn: Spawn) -> None:
        self._intakes, self._clock, self._spawn = intakes, clock, spawn
        self._running: list[asyncio.Task[Any]] = []
        self._reporting: list[asyncio.Task[Any]] = []

    @property
    def specs(self) -> list[IntakeSpec]:
        """The intakes as code declares them."""
        return [intake.spec for intake in self._intakes]

    @property
    def states(self) -> dict[str, str]:
        """The state of each intake in this process, by name."""
        return {intake.spec.name: intake.state for intake in self._intakes}

    @property
    def taken(self) -> int:
        """Messages that this process acknowledged."""
        return sum([intake.taken for intake in self._intakes])

    @property
    def dead(self) -> int:
        """Dead letters that this process wrote."""
        return sum([intake.dead for intake in self._intakes])

    def start(self) -> None:
        """Begin to receive."""
        for intake in self._intakes:
            self._running.append(self._spawn(intake.run(), "onward-intake"))
            self._reporting.append(self._spawn(intake.keep_reporting(), "onward-intake-report"))

    async def stop(self, grace: float = 5.0) -> None:
        """Fetch no more. Messages under way may be committed within the grace; the others come again."""
        for intake in self._intakes:
            intake.stopping = True
        end = self._clock.monotonic() + grace
        while any(not task.done() for task in self._running) and self._clock.monotonic() < end:
            await self._clock.sleep(0.02)
        await end_tasks([*self._running, *self._reporting], CANCEL_TIMEOUT_S, log, "the stop of the intakes")
        reports: list[Awaitable[None]] = [intake.report() for intake in self._intakes]
        await asyncio.gather(*reports)
