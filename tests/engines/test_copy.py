"""The copy in memory of the tasks of another engine: it is bounded, and a list reads no more than its page needs."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import cast

import pytest

from onward import State
from onward.core.clock import SystemClock
from onward.core.record import Record
from onward.core.task import Message
from onward.engines.copy import Copier, JournalCopy, TaskCopy
from onward.engines.temporal.visibility import Visibility
from onward.store.port.core import Store
from onward.store.port.listing import Which
from onward.store.sqlite.store import SqliteStore


def task_copy(task_id: str, *, size: int = 10) -> TaskCopy:
    """A completed task with a result of this size."""
    data = b'{"result":"%b"}' % (b"x" * size)
    records = [Record(1, 0, "task.submitted", "", b"{}", 1.0), Record(2, 1, "task.completed", "", data, 2.0)]
    return TaskCopy(
        id=task_id,
        task="work",
        input=b"null",
        options=b"{}",
        queue="default",
        priority=0,
        key=None,
        fingerprint="",
        parent=None,
        group=None,
        tenant=None,
        created_at=1.0,
        attempt=1,
        state="completed",
        reason="",
        due_at=None,
        worker=None,
        records=records,
        inbox=[],
        head=2,
        messages=0,
    )


class Far:
    """An engine with so many tasks, which counts reads."""

    def __init__(self, tasks: int) -> None:
        self.ids = [f"{number:026}" for number in range(tasks)]
        self.reads: list[str] = []

    async def read(self, task_id: str, after: int, after_message: int) -> TaskCopy | None:
        self.reads.append(task_id)
        task = task_copy(task_id, size=1000)
        return dataclasses.replace(task, records=[record for record in task.records if record.seq > after])

    async def matching(self, which: Which) -> list[str]:
        return self.ids[::-1]


@pytest.fixture
def far() -> Far:
    return Far(50)


@pytest.fixture
async def copy(far: Far) -> AsyncIterator[JournalCopy]:
    store = SqliteStore(":memory:", inline=True)
    copy = JournalCopy("a test", cast("Store", store), far.read, far.matching, SystemClock())
    await store.open()
    yield copy
    await store.close()


async def test_a_page_reads_its_own_tasks(copy: JournalCopy, far: Far) -> None:
    newest = far.ids[::-1]
    page = await copy.listing.list(limit=5, before=None)
    assert [task.task_id for task in page] == newest[:5]
    page = await copy.listing.list(limit=5, before=newest[4])
    assert [task.task_id for task in page] == newest[5:10]
    assert sorted(far.reads, reverse=True) == newest[:10], "each task was read once, and no other"
    assert await copy.listing.list(limit=5, before=None, state=State.FAILED) == []
    assert set(far.reads) == set(newest), "a filter that the engine cannot apply reads on"


async def test_tasks_read_least_recently_are_dropped(copy: JournalCopy, far: Far) -> None:
    copy.max_tasks = 3
    for task_id in (*far.ids[:3], far.ids[0], far.ids[3]):
        assert (await copy.get(task_id)) is not None
    assert [await copy._copier.has(task_id) for task_id in far.ids[:4]] == [True, False, True, True]
    assert (await copy.get(far.ids[1])) is not None, "it is read again"


async def test_a_copy_has_a_bound_of_bytes(copy: JournalCopy, far: Far) -> None:
    copy.max_bytes = 10_500
    for task_id in far.ids:
        await copy.get(task_id)
    assert len(copy._sizes) == 10
    assert [await copy._copier.has(task_id) for task_id in far.ids] == [False] * 40 + [True] * 10


async def test_an_ended_task_is_copied_to_its_last_message() -> None:
    """The pages of an ended task may have all records before they have all messages."""
    store = SqliteStore(":memory:", inline=True)
    inbox = [Message(f"m{number}", "signal", "go", None, b"{}", number) for number in range(1, 4)]

    async def read(task_id: str, after: int, after_message: int) -> TaskCopy:
        task = task_copy(task_id)
        records = [record for record in task.records if record.seq > after]
        return dataclasses.replace(task, records=records, inbox=inbox[after_message : after_message + 1], messages=3)

    await store.open()
    assert await Copier(cast("Store", store), read).refresh("0" * 26)
    assert await store.inbox("0" * 26) == inbox
    task = await store.get("0" * 26)
    assert task is not None
    assert task.state is State.COMPLETED
    await store.close()


@pytest.mark.parametrize(
    ("which", "part"),
    [
        ({"state": State.FAILED}, "ExecutionStatus IN ('Failed')"),
        ({"state": [State.WAITING, State.COMPLETED]}, "ExecutionStatus IN ('Running', 'Completed')"),
        ({"reason": "approval"}, "ExecutionStatus IN ('Running')"),
        ({"task": ["a", "b"]}, "OnwardTaskName IN ('a', 'b')"),
        ({"label": b'"team":"shop"'}, "OnwardLabels IN ('team=shop')"),
        ({"whose": "acme", "parent": "p"}, "OnwardTenant IN ('acme') AND OnwardParent IN ('p')"),
    ],
)
def test_filters_of_visibility(which: Which, part: str) -> None:
    assert part in Visibility("q").query(which)


def test_a_filter_that_would_need_quotes_is_left_out() -> None:
    assert "Onward" not in Visibility("q").query({"task": "it's", "label": b'"a":"b\'c"'}).replace("OnwardTask'", "")
    assert "OnwardTaskName" not in Visibility("q").query({"task": "a"}, searchable=False)
