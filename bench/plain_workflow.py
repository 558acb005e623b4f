"""The task of `bench engines` as a plain workflow of Temporal: each step is an activity. The sandbox of the SDK imports this module anew."""

from __future__ import annotations

import datetime

from temporalio import workflow

STEPS = 20
STEP_TIMEOUT = datetime.timedelta(seconds=60)


@workflow.defn(name="Plain")
class Plain:
    """The steps one after the other."""

    @workflow.run
    async def run(self) -> int:
        results: list[int] = [
            await workflow.execute_activity("step", number, start_to_close_timeout=STEP_TIMEOUT)
            for number in range(STEPS)
        ]
        return sum(results)
