"""Histories that the workflow of an older version wrote: this version replays them with the same commands."""

from __future__ import annotations

import typing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("temporalio")

from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from onward.engines import wire
from onward.engines.temporal.worker import workflow_runner
from onward.engines.temporal.workflow import OnwardTask
from tests.engines.histories import PLAYS, files, read

FILES = files()


def _read(file: Path) -> WorkflowHistory:
    document = read(file)
    return WorkflowHistory.from_json(document["id"], document["history"])


def test_each_way_through_the_workflow_has_a_history() -> None:
    assert {file.name.rpartition("-")[0] for file in FILES} == set(PLAYS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.partition(".")[0])
async def test_stored_histories_replay(file: Path) -> None:
    await Replayer(workflows=[OnwardTask], workflow_runner=workflow_runner()).replay_workflow(_read(file))


def test_the_sdk_converts_no_journal_item_by_item() -> None:
    """A new run of a task with 10,000 records would take longer for that than the SDK allows."""
    assert typing.get_type_hints(OnwardTask.run)["start"] is Any
    assert typing.get_type_hints(OnwardTask.__init__)["start"] is Any


@workflow.defn(name=wire.WORKFLOW)
class Changed(OnwardTask):
    """Waits before each stretch: one command more."""

    @workflow.init
    def __init__(self, start: Any) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: Any) -> Any:
        return await super().run(start)

    async def _advance(self) -> None:
        await workflow.sleep(timedelta(seconds=1))
        await super()._advance()


async def test_a_planted_change_of_the_workflow_is_found() -> None:
    replayer = Replayer(workflows=[Changed], workflow_runner=UnsandboxedWorkflowRunner())
    for file in FILES:
        with pytest.raises(NondeterminismError):
            await replayer.replay_workflow(_read(file))
