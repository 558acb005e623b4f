"""The keeper of artifacts: bytes that tasks leave behind, named by their hash, in the database or on a shelf outside of it.

An id is opaque. It is looked up among what its own task left behind and nowhere else; what cannot be an id is not looked up
at all, so no id is ever part of a path that it could lead astray. What comes back must have the hash that it was asked for by.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from onward.core import record as r
from onward.core import wire
from onward.core.record import Record
from onward.errors import ArtifactDamaged, ArtifactNotFound, ArtifactTooLarge, TaskNotFound
from onward.store.port.core import Batch, Content, Store
from onward.store.port.paging import journal_pages

if TYPE_CHECKING:
    from onward.core.state import ArtifactRef

T = TypeVar("T")

LARGEST = 100_000_000
"""Bytes that an artifact may have. It goes through memory, of the worker and of whoever reads it."""

MUCH = 1_000_000
"""Bytes from which on work on them is done beside the loop, which has other tasks to see to."""

_TASK = re.compile(r"[0-9a-z]{26}")
_NAME = re.compile(r"[0-9a-f]{32}")


class Shelf(Protocol):
    """A place outside the database. Its verbs are plain functions that may take their time; they are called in threads, with
    ids and names that were checked. They raise StoreUnavailable when the place cannot be reached or written just now."""

    def put(self, task_id: str, name: str, data: bytes) -> None:
        """Keep it. Durable when this returns; the same again is the same."""
        ...

    def get(self, task_id: str, name: str) -> bytes | None:
        """What the task has under this name; None when there is nothing."""
        ...

    def drop(self, task_id: str) -> None:
        """Remove all that the task has. Nothing there is fine too."""
        ...


class Artifacts:
    """The artifacts of all tasks. Without a shelf they are contents of the task in the database."""

    def __init__(self, store: Store, shelf: Shelf | None = None) -> None:
        self._store, self._shelf = store, shelf

    @property
    def elsewhere(self) -> bool:
        """Whether they are kept outside the database."""
        return self._shelf is not None

    # ── what a worker does ───────────────────────────────────────────────────────────────────────────────────────

    async def put(self, task_id: str, data: bytes) -> str:
        """Keep bytes for a task; their id, when they are durable, so that a record written after this may refer to them.
        Raises ArtifactTooLarge."""
        if len(data) > LARGEST:
            raise ArtifactTooLarge(len(data), LARGEST)
        name = await beside(len(data), lambda: wire.content_id(data))
        if self._shelf is None:
            # A commit of its own: one that also held other tasks' steps would let them wait for this.
            await self._store.save("", Batch(contents=[Content(task_id, name, data)]))
        else:
            await asyncio.to_thread(self._shelf.put, _checked(task_id), name, data)
        return name

    async def get(self, task_id: str, artifact_id: str) -> bytes:
        """The bytes that a task keeps under this id. Raises ArtifactNotFound, and ArtifactDamaged when they are not those that
        were left behind."""
        found = await self._found(task_id, artifact_id) if _NAME.fullmatch(artifact_id) else None
        if found is None:
            raise ArtifactNotFound(task_id, artifact_id)
        data = found
        if await beside(len(data), lambda: wire.content_id(data)) != artifact_id:
            raise ArtifactDamaged(task_id, artifact_id)
        return data

    async def _found(self, task_id: str, name: str) -> bytes | None:
        if self._shelf is not None:
            data = await asyncio.to_thread(self._shelf.get, _checked(task_id), name)
            if data is not None:
                return data
        # In the database is also what was left behind before there was a shelf.
        return (await self._store.contents(task_id, [name])).get(name)

    # ── what people ask ──────────────────────────────────────────────────────────────────────────────────────────

    async def of(self, task_id: str, until: int | None = None) -> list[ArtifactRef]:
        """What a task has left behind, in order, up to a record; each once. Raises TaskNotFound."""
        from onward.core.state import ArtifactRef  # noqa: PLC0415 -- pydantic, which most programs do not need

        found: dict[str, Any] = {}
        async for record in self._journal(_checked(task_id)):
            if until is None or record.seq <= until:
                found |= {one["artifact_id"]: one for one in _told(record)}
        return [ArtifactRef.model_validate(one) for one in found.values()]

    async def read(self, task_id: str, artifact_id: str) -> bytes:
        """The bytes of an artifact that the journal of the task tells of. Raises ArtifactNotFound."""
        known = [one.artifact_id for one in await self.of(task_id)]
        if artifact_id not in known:
            raise ArtifactNotFound(task_id, artifact_id, known)
        return await self.get(task_id, artifact_id)

    async def _journal(self, task_id: str) -> AsyncIterator[Record]:
        empty = True
        async for page in journal_pages(self._store.journal, task_id):
            for record in page:
                yield record
            empty = False
        if empty:
            raise TaskNotFound(task_id)

    # ── tasks that come and go ───────────────────────────────────────────────────────────────────────────────────

    async def inherit(self, task_id: str, origin: str, until: int) -> None:
        """Give a fork, before it is there, what the first records of its origin tell of. (What is in the database, the
        database gives it.)"""
        if self._shelf is None:
            return
        for one in await self.of(origin, until):
            data = await asyncio.to_thread(self._shelf.get, origin, one.artifact_id)
            if data is not None:
                await asyncio.to_thread(self._shelf.put, _checked(task_id), one.artifact_id, data)

    async def drop(self, task_id: str) -> None:
        """Remove what a task has on the shelf, once the task is gone. (What is in the database goes with it.)"""
        if self._shelf is not None:
            await asyncio.to_thread(self._shelf.drop, _checked(task_id))


async def beside(size: int, work: Callable[[], T]) -> T:
    """What comes of work on so many bytes: in a thread, when they are many."""
    return work() if size < MUCH else await asyncio.to_thread(work)


def _told(record: Record) -> list[dict[str, Any]]:
    """The refs in a record: where one was left behind, and in the state, which a checkpoint carries on."""
    if record.kind == r.ARTIFACT:
        return [record.value]
    if record.kind != r.PATCHED:
        return []
    said = record.value
    return [*said.get("patch", {}).get("add_artifacts", ()), *said.get("state", {}).get("artifacts", ())]


def _checked(task_id: str) -> str:
    """An id as one of ours is; it becomes part of a path."""
    if not _TASK.fullmatch(task_id):
        raise TaskNotFound(task_id.encode("ascii", "backslashreplace").decode()[:80])
    return task_id
