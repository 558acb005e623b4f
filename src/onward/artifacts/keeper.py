"""The keeper of artifacts: bytes that tasks leave behind, named by their hash, in the database or on a shelf outside of it.

An id is opaque. It is looked up only among the artifacts of its own task, and only if it has the form of an id; so an id can never
lead a path astray. The keeper checks the hash of the bytes that it reads.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from onward.core import record as r
from onward.core import wire
from onward.core.page import MAX_SHOWN_CHARS, Page, check_limit
from onward.core.record import Record
from onward.core.sealed import is_sealed, unreadable
from onward.core.text import safe
from onward.errors import ArtifactDamaged, ArtifactNotFound, ArtifactTooLarge, BadSetting, TaskNotFound
from onward.store.port.core import Batch, Content, Store
from onward.store.port.listing import PAGE_BYTES
from onward.store.port.paging import journal_pages

if TYPE_CHECKING:
    from onward.core.state import ArtifactRef

T = TypeVar("T")

MAX_ARTIFACT_BYTES = 100_000_000
"""Bytes of one artifact. It is held in the memory of the worker and of its readers."""

PAGE_ARTIFACTS = 1_000
"""Artifacts of a page."""

MAX_INLINE_BYTES = 1_000_000
"""Work on more bytes than this runs in a thread, so that the event loop serves other tasks."""

BeforeLoad = Callable[[int], Awaitable[None]]
"""Called with the size of an artifact before its bytes are loaded."""

_TASK_ID = re.compile(r"[0-9a-z]{26}")
_ARTIFACT_ID = re.compile(r"[0-9a-f]{32}")


class Shelf(Protocol):
    """A storage place outside the database. Its methods are plain functions that may block; they are called in threads, with
    ids and names that were checked. They raise StoreUnavailable if the place cannot be reached or written."""

    def put(self, task_id: str, name: str, data: bytes) -> None:
        """Store the bytes. They are durable when this returns. Storing the same again changes nothing."""
        ...

    def get(self, task_id: str, name: str) -> bytes | None:
        """The bytes that the task has under this name; None if there are none."""
        ...

    def drop(self, task_id: str) -> None:
        """Delete all that the task has. It is no error if there is nothing."""
        ...

    def names(self) -> Iterator[tuple[str, str]]:
        """The tasks and names of all that is stored, in any order, while others store and delete."""
        ...


class Artifacts:
    """The artifacts of all tasks. Without a shelf they are stored in the database, as contents of the task."""

    def __init__(self, store: Store, shelf: Shelf | None = None) -> None:
        self._store, self._shelf = store, shelf

    @property
    def elsewhere(self) -> bool:
        """Whether artifacts are stored outside the database."""
        return self._shelf is not None

    @property
    def shelf(self) -> Shelf | None:
        """The place outside the database; None where the database stores them."""
        return self._shelf

    # ── for workers ──────────────────────────────────────────────────────────────────────────────────────────────

    async def put(self, task_id: str, data: bytes) -> str:
        """Store bytes for a task; returns their id once they are durable, so that a later record may refer to them. Raises
        ArtifactTooLarge."""
        if len(data) > MAX_ARTIFACT_BYTES:
            raise ArtifactTooLarge(len(data), MAX_ARTIFACT_BYTES)
        name = await _content_id(data)
        if self._shelf is None:
            # A commit of its own: in a shared commit, the steps of other tasks would wait for these bytes.
            await self._store.save("", Batch(contents=[Content(task_id, name, data)]))
        else:
            await self._put_on_shelf(self._shelf, task_id, name, data)
        return name

    async def _put_on_shelf(self, shelf: Shelf, task_id: str, name: str, data: bytes) -> None:
        codec = self._store.codec
        stored = data if codec is None else await codec.sealed_content(_check_task_id(task_id), name, data)
        await asyncio.to_thread(shelf.put, _check_task_id(task_id), name, stored)

    async def _get_from_shelf(self, shelf: Shelf, task_id: str, name: str) -> bytes | None:
        codec = self._store.codec
        data = await asyncio.to_thread(shelf.get, _check_task_id(task_id), name)
        return data if data is None or codec is None else (await codec.contents(task_id, {name: data}))[name]

    async def get(self, task_id: str, artifact_id: str) -> bytes:
        """The bytes that a task stored under this id. Raises ArtifactNotFound, and ArtifactDamaged if they have another hash."""
        data = await self._load(task_id, artifact_id) if _ARTIFACT_ID.fullmatch(artifact_id) else None
        if data is None:
            raise ArtifactNotFound(task_id, artifact_id)
        if await _content_id(data) != artifact_id:
            if is_sealed(data):  # this process has no keys at all
                raise unreadable(data, f"the artifact {artifact_id} of task {task_id}")
            raise ArtifactDamaged(task_id, artifact_id)
        return data

    async def _load(self, task_id: str, name: str) -> bytes | None:
        if self._shelf is not None:
            data = await self._get_from_shelf(self._shelf, task_id, name)
            if data is not None:
                return data
        # The database also has the artifacts from before the shelf was set up.
        return (await self._store.contents(task_id, [name])).get(name)

    # ── for readers ──────────────────────────────────────────────────────────────────────────────────────────────

    async def page(self, task_id: str, *, limit: int = PAGE_ARTIFACTS, cursor: str | None = None) -> Page[ArtifactRef]:
        """A page of the artifacts of a task, in the order in which its journal first names them; `next` is the cursor of the next page.
        They have about `PAGE_BYTES` together, so a page may have fewer than `limit`. Raises TaskNotFound."""
        from onward.core.state import ArtifactRef  # noqa: PLC0415 -- pydantic, which most programs do not need

        check_limit(limit, PAGE_ARTIFACTS)
        if cursor is not None and not _ARTIFACT_ID.fullmatch(cursor):
            raise BadSetting("cursor", safe(cursor)[:MAX_SHOWN_CHARS], "`next` of the page before")
        refs: dict[str, dict[str, Any]] = {}
        earlier: set[str] = set()
        size, begun, more = 0, cursor is None, False
        async for ref in self._refs(task_id):
            artifact_id = str(ref["artifact_id"])
            if not begun:
                earlier.add(artifact_id)
                begun = artifact_id == cursor
            elif artifact_id in refs:
                refs[artifact_id] = ref  # the journal may name it again, with another summary
            elif artifact_id not in earlier and not (more := more or len(refs) == limit or size >= PAGE_BYTES):
                refs[artifact_id] = ref
                size += len(wire.encode(ref))
        return Page([ArtifactRef.model_validate(ref) for ref in refs.values()], [*refs][-1] if more else None)

    async def of(self, task_id: str, until: int | None = None) -> list[ArtifactRef]:
        """The artifacts of a task, in order, up to a record; each once. Raises TaskNotFound."""
        from onward.core.state import ArtifactRef  # noqa: PLC0415 -- pydantic, which most programs do not need

        refs = {ref["artifact_id"]: ref async for ref in self._refs(task_id, until)}
        return [ArtifactRef.model_validate(ref) for ref in refs.values()]

    async def _refs(self, task_id: str, until: int | None = None) -> AsyncIterator[dict[str, Any]]:
        """What the journal of a task says of artifacts, up to a record; of some several times. Raises TaskNotFound."""
        empty = True
        async for page in journal_pages(self._store.journal, _check_task_id(task_id)):
            empty = False
            for record in page:
                if until is None or record.seq <= until:
                    for ref in _refs_in(record):
                        yield ref
        if empty:
            raise TaskNotFound(task_id)

    async def read(self, task_id: str, artifact_id: str, before_load: BeforeLoad | None = None) -> bytes:
        """The bytes of an artifact that the journal of the task names. Raises ArtifactNotFound."""
        known: set[str] = set()
        async for ref in self._refs(task_id):
            known.add(str(ref["artifact_id"]))
            if ref["artifact_id"] == artifact_id:
                if before_load is not None:
                    await before_load(int(ref["bytes"]))
                return await self.get(task_id, artifact_id)
        raise ArtifactNotFound(task_id, artifact_id, sorted(known))

    # ── forks and pruning ────────────────────────────────────────────────────────────────────────────────────────

    async def inherit(self, task_id: str, origin: str, until: int) -> None:
        """Copy to a fork, before it exists, the artifacts that the first records of its origin name. (The store copies those in
        the database.)"""
        if self._shelf is None:
            return
        if (codec := self._store.codec) is not None:
            await codec.key_for_fork(task_id, origin)  # so that it knows the subject of the fork
        for ref in await self.of(origin, until):
            data = await self._get_from_shelf(self._shelf, origin, ref.artifact_id)
            if data is not None:
                await self._put_on_shelf(self._shelf, task_id, ref.artifact_id, data)

    async def seal(self, task_id: str) -> int:
        """Seal what a task has on the shelf from before encryption was on; how many artifacts that were. (The store seals those in the
        database.)"""
        count = 0
        if self._shelf is None:
            return 0
        for ref in await self.of(task_id):
            name = ref.artifact_id
            data = await asyncio.to_thread(self._shelf.get, _check_task_id(task_id), name)
            if data is not None and await _content_id(data) == name:
                await self._put_on_shelf(self._shelf, task_id, name, data)
                count += 1
        return count

    async def drop(self, task_id: str) -> None:
        """Delete what a task has on the shelf, after the task was pruned. (The store deletes what is in the database.)"""
        if self._shelf is not None:
            await asyncio.to_thread(self._shelf.drop, _check_task_id(task_id))


async def run_off_loop(size: int, work: Callable[[], T]) -> T:
    """The result of work on this many bytes; in a thread if they are many."""
    return work() if size < MAX_INLINE_BYTES else await asyncio.to_thread(work)


async def _content_id(data: bytes) -> str:
    return await run_off_loop(len(data), lambda: wire.content_id(data))


def _refs_in(record: Record) -> list[dict[str, Any]]:
    """The artifact refs in a record: of an artifact that was stored, or in the state, which a checkpoint carries on."""
    if record.kind == r.ARTIFACT:
        return [record.value]
    if record.kind != r.PATCHED:
        return []
    value = record.value
    return [*value.get("patch", {}).get("add_artifacts", ()), *value.get("state", {}).get("artifacts", ())]


def is_stored_name(task_id: str, name: str) -> bool:
    """Whether these are names that the keeper gives: a shelf may have other files, such as those that are being written."""
    return bool(_TASK_ID.fullmatch(task_id) and _ARTIFACT_ID.fullmatch(name))


def _check_task_id(task_id: str) -> str:
    """The id, if it has the form of a task id; it becomes part of a path. Raises TaskNotFound."""
    if not _TASK_ID.fullmatch(task_id):
        raise TaskNotFound(task_id.encode("ascii", "backslashreplace").decode()[:80])
    return task_id
