"""The checkpoints of LangGraph threads, as documents.

The documents of a thread, by the first part of their keys:

- `c` thread, namespace, checkpoint: the checkpoint without the values of its channels, and its metadata
- `b` thread, namespace, channel, version: the value of a channel. A checkpoint writes those that changed
- `w` thread, namespace, checkpoint, task, number: a pending write
- `r` run, thread, namespace, checkpoint: which checkpoints a run made
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from onward.store.shared.documents import PAGE_DOCUMENTS, Collection, Span, key, parts_of, span

EMPTY = "empty"
"""The type of the value of a channel that has none."""


class _Place(NamedTuple):
    """A thread, a namespace in it, and a checkpoint in that."""

    thread: str
    namespace: str
    checkpoint: str

    def config(self) -> RunnableConfig:
        return {
            "configurable": {
                "thread_id": self.thread,
                "checkpoint_ns": self.namespace,
                "checkpoint_id": self.checkpoint,
            }
        }


class _Stored(NamedTuple):
    """A checkpoint as it is stored: serialized, without the values of its channels."""

    checkpoint: tuple[str, bytes]
    metadata: tuple[str, bytes]
    parent: str | None
    run: str | None

    def encode(self) -> bytes:
        head = [self.checkpoint[0], len(self.checkpoint[1]), self.metadata[0], self.parent, self.run]
        return json.dumps(head).encode() + b"\n" + self.checkpoint[1] + self.metadata[1]

    @classmethod
    def decode(cls, data: bytes) -> _Stored:
        line, _, rest = data.partition(b"\n")
        kind, size, metadata_kind, parent, run = json.loads(line)
        return cls((kind, rest[:size]), (metadata_kind, rest[size:]), parent, run)


class Checkpoints:
    """The checkpoints of a collection of documents. `OnwardSaver` has the meaning of each verb."""

    def __init__(self, documents: Collection, serde: SerializerProtocol) -> None:
        self._documents, self.serde = documents, serde

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, config: RunnableConfig) -> CheckpointTuple | None:
        thread, namespace = _thread(config), _namespace(config) or ""
        if (wanted := get_checkpoint_id(config)) is not None:
            found = await self._documents.read([key("c", thread, namespace, wanted)])
            data, checkpoint = next(iter(found.values()), None), wanted
        else:
            newest = await self._documents.last(span("c", thread, namespace))
            data, checkpoint = (None, "") if newest is None else (newest[1], parts_of(newest[0])[3])
        if data is None:
            return None
        return await self._tuple(_Place(thread, namespace, checkpoint), _Stored.decode(data))

    async def _tuple(self, place: _Place, stored: _Stored) -> CheckpointTuple:
        checkpoint: Checkpoint = self.serde.loads_typed(stored.checkpoint)
        values, writes = await asyncio.gather(
            self._values(place, checkpoint["channel_versions"]), self._pending_writes(place)
        )
        parent = None if stored.parent is None else place._replace(checkpoint=stored.parent).config()
        return CheckpointTuple(
            place.config(),
            {**checkpoint, "channel_values": values},
            self.serde.loads_typed(stored.metadata),
            parent,
            writes,
        )

    async def _values(self, place: _Place, versions: ChannelVersions) -> dict[str, Any]:
        keys = {_value_key(place, channel, version): channel for channel, version in versions.items()}
        found = await self._documents.read(list(keys))
        typed = {keys[key_]: _typed(data) for key_, data in found.items()}
        return {
            channel: self.serde.loads_typed(typed[channel])
            for channel in versions
            if channel in typed and typed[channel][0] != EMPTY
        }

    async def _pending_writes(self, place: _Place) -> list[tuple[str, str, Any]]:
        stored = []
        async for key_, data in self._documents.scan(span("w", *place)):
            task, number = parts_of(key_)[4:]
            line, _, rest = data.partition(b"\n")
            channel, kind, path = json.loads(line)
            stored.append((writes_sort_key(path, task, int(number)), task, channel, (kind, rest)))
        stored.sort(key=lambda write: write[0])
        return [(task, channel, self.serde.loads_typed(typed)) for _, task, channel, typed in stored]

    async def find(
        self,
        config: RunnableConfig | None,
        wanted: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncGenerator[CheckpointTuple, None]:
        left = limit
        async for place, stored in self._places(config, None if before is None else get_checkpoint_id(before)):
            if left is not None and left <= 0:
                return
            metadata = self.serde.loads_typed(stored.metadata)
            if all(metadata.get(name) == value for name, value in (wanted or {}).items()):
                yield await self._tuple(place, stored)
                left = None if left is None else left - 1

    async def _places(self, config: RunnableConfig | None, before: str | None) -> AsyncIterator[tuple[_Place, _Stored]]:
        """The checkpoints that a config names, the newest first."""
        thread, namespace = (None, None) if config is None else (_thread(config), _namespace(config))
        only = None if config is None else get_checkpoint_id(config)
        if thread is not None and namespace is not None and only is None:
            start, stop = span("c", thread, namespace)
            stop = stop if before is None else key("c", thread, namespace, before)
            async for key_, data in self._documents.scan(Span(start, stop), back=True):
                yield _Place(*parts_of(key_)[1:]), _Stored.decode(data)
            return
        parts = ["c"] + [part for part in (thread, namespace) if part is not None]
        places = [_Place(*parts_of(key_)[1:]) async for key_ in self._documents.keys(span(*parts))]
        places = [
            place for place in places if only in {None, place.checkpoint} and (not before or place.checkpoint < before)
        ]
        places.sort(key=lambda place: (place.checkpoint, place), reverse=True)
        for at in range(0, len(places), PAGE_DOCUMENTS):
            page = {key("c", *place): place for place in places[at : at + PAGE_DOCUMENTS]}
            found = await self._documents.read(list(page))
            for key_, place in page.items():
                if key_ in found:
                    yield place, _Stored.decode(found[key_])

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        place = _Place(_thread(config), _namespace(config) or "", checkpoint["id"])
        values: dict[str, Any] = checkpoint["channel_values"]
        bare = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        whole = get_checkpoint_metadata(config, metadata)
        run = whole.get("run_id")
        run = run if isinstance(run, str) else None
        stored = _Stored(
            self.serde.dumps_typed(bare), self.serde.dumps_typed(whole), get_checkpoint_id(config) or None, run
        )
        puts = {
            _value_key(place, channel, version): _untyped(
                self.serde.dumps_typed(values[channel]) if channel in values else (EMPTY, b"")
            )
            for channel, version in new_versions.items()
        }
        puts[key("c", *place)] = stored.encode()
        if run is not None:
            puts[key("r", run, *place)] = b""
        await self._documents.write(puts)
        return place.config()

    async def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> None:
        place = _Place(_thread(config), _namespace(config) or "", get_checkpoint_id(config) or "")
        puts: dict[str, bytes] = {}
        adds: dict[str, bytes] = {}
        for position, (channel, value) in enumerate(writes):
            number = WRITES_IDX_MAP.get(channel, position)
            kind, data = self.serde.dumps_typed(value)
            document = json.dumps([channel, kind, task_path]).encode() + b"\n" + data
            # An error or an interrupt replaces the one before it. The result of a task that runs again does not.
            (puts if number < 0 else adds)[key("w", *place, task_id, str(number))] = document
        await self._documents.write(puts, adds=adds)

    async def delete_thread(self, thread: str) -> None:
        await self._forget_runs(_Place(*parts_of(key_)[1:]) async for key_ in self._documents.keys(span("c", thread)))
        await self._documents.drop(span("c", thread), span("w", thread), span("b", thread))

    async def _forget_runs(self, places: AsyncIterator[_Place]) -> None:
        """Drop the marks of the runs that made these checkpoints."""
        page: list[_Place] = []
        async for place in places:
            page.append(place)
            if len(page) == PAGE_DOCUMENTS:
                await self._drop_marks(page)
                page = []
        await self._drop_marks(page)

    async def _drop_marks(self, places: Sequence[_Place]) -> None:
        found = await self._documents.read([key("c", *place) for place in places])
        marks = [(_Stored.decode(data).run, parts_of(key_)[1:]) for key_, data in found.items()]
        await self._documents.write({}, drops=[key("r", run, *place) for run, place in marks if run is not None])

    async def _delete_checkpoints(self, places: Iterable[_Place]) -> None:
        """Delete checkpoints and their writes, each in one transaction."""
        for place in places:
            await self._drop_marks([place])
            writes = [key_ async for key_ in self._documents.keys(span("w", *place))]
            await self._documents.write({}, drops=[key("c", *place), *writes])

    async def delete_for_runs(self, runs: Sequence[str]) -> None:
        for run in runs:
            places = [_Place(*parts_of(key_)[2:]) async for key_ in self._documents.keys(span("r", run))]
            await self._delete_checkpoints(places)
            await self._documents.drop(span("r", run))

    async def copy_thread(self, source: str, target: str) -> None:
        for kind in "bwc":  # the checkpoints last: each finds its values and writes
            async for key_, data in self._documents.scan(span(kind, source)):
                parts = [kind, target, *parts_of(key_)[2:]]
                puts = {key(*parts): data}
                if kind == "c" and (run := _Stored.decode(data).run) is not None:
                    puts[key("r", run, *parts[1:])] = b""
                await self._documents.write(puts)

    async def prune(self, threads: Sequence[str], strategy: str) -> None:
        if strategy not in {"keep_latest", "delete"}:
            raise ValueError(f"the strategy of a prune is keep_latest or delete, not {strategy!r}")
        for thread in threads:
            if strategy == "delete":
                await self.delete_thread(thread)
            else:
                await self._keep_latest(thread)

    async def _keep_latest(self, thread: str) -> None:
        places = [_Place(*parts_of(key_)[1:]) async for key_ in self._documents.keys(span("c", thread))]
        newest = {place.namespace: place for place in places}  # in the order of their ids
        kept: set[_Place] = set()
        values: set[str] = set()
        for place in newest.values():
            for needed, versions in await self._needed(place):
                kept.add(needed)
                values |= {_value_key(needed, channel, version) for channel, version in versions.items()}
        await self._delete_checkpoints(place for place in places if place not in kept)
        unused = [key_ async for key_ in self._documents.keys(span("b", thread)) if key_ not in values]
        for at in range(0, len(unused), PAGE_DOCUMENTS):
            await self._documents.write({}, drops=unused[at : at + PAGE_DOCUMENTS])

    async def _needed(self, place: _Place) -> list[tuple[_Place, ChannelVersions]]:
        """A checkpoint, and those before it that its delta channels are computed from, with the versions of their channels."""
        needed: list[tuple[_Place, ChannelVersions]] = []
        open_channels: set[str] | None = None
        at: str | None = place.checkpoint
        while at is not None and (open_channels is None or open_channels):
            here = place._replace(checkpoint=at)
            data = (await self._documents.read([key("c", *here)])).get(key("c", *here))
            if data is None:
                break
            stored = _Stored.decode(data)
            versions: ChannelVersions = self.serde.loads_typed(stored.checkpoint)["channel_versions"]
            needed.append((here, versions))
            if open_channels is None:
                metadata = self.serde.loads_typed(stored.metadata)
                open_channels = set(metadata.get("counters_since_delta_snapshot") or ())
            keys = {_value_key(here, name, versions[name]): name for name in open_channels if name in versions}
            found = await self._documents.read(list(keys))
            open_channels -= {keys[key_] for key_, value in found.items() if _typed(value)[0] != EMPTY}
            at = stored.parent
        return needed


def _thread(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])


def _namespace(config: RunnableConfig) -> str | None:
    namespace: str | None = config["configurable"].get("checkpoint_ns")
    return namespace


def _value_key(place: _Place, channel: str, version: str | float) -> str:
    return key("b", place.thread, place.namespace, channel, str(version))


def _untyped(typed: tuple[str, bytes]) -> bytes:
    return typed[0].encode() + b"\n" + typed[1]


def _typed(data: bytes) -> tuple[str, bytes]:
    kind, _, rest = data.partition(b"\n")
    return kind.decode(), rest
