"""A checkpointer of LangGraph on the database of an app."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from onward.integrations.bridge import App, Bridge
from onward.integrations.langgraph.checkpoints import Checkpoints

COLLECTION = "langgraph.checkpoints"


class OnwardSaver(BaseCheckpointSaver[str]):
    """A checkpointer of LangGraph that keeps its checkpoints in the database of an app.

        async with Onward() as app:
            graph = builder.compile(checkpointer=OnwardSaver(app))

    In a program without an event loop, `with app.in_thread():` opens the app, and blocking calls such as `graph.invoke` work.

    Threads of a `tenant` are apart from those of others. Payloads are encrypted where the app has keys.
    """

    def __init__(self, app: App, *, tenant: str | None = None, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self._bridge = Bridge(app)
        self._documents = app.store.documents.of(COLLECTION, tenant)

    @property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self._documents, self.serde)  # LangGraph and its users replace `serde`

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The version after this one. A part of it is random: a thread that goes on from an old checkpoint must not meet the values of
        the versions that came after that one before."""
        number = (
            int(str(current).split(".")[0]) if current else 0
        )  # a number where another checkpointer began the thread
        return f"{number + 1:032}.{random.getrandbits(64):016x}"

    # ── from coroutines ──────────────────────────────────────────────────────────────────────────────────────────

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the newest one of its thread; None where there is none."""
        return await self._bridge.run(self._checkpoints.get(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 -- the name in LangGraph
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Checkpoints, the newest first."""
        rows = self._checkpoints.find(config, filter, before, limit)
        try:
            while (row := await self._bridge.run(_next(rows))) is not None:
                yield row
        finally:
            await self._bridge.run(_close(rows))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint."""
        return await self._bridge.run(self._checkpoints.put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Save the writes of a task that belong to a checkpoint."""
        await self._bridge.run(self._checkpoints.put_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints of a thread."""
        await self._bridge.run(self._checkpoints.delete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs made. The values of channels stay until the thread is pruned or deleted."""
        await self._bridge.run(self._checkpoints.delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to another one."""
        await self._bridge.run(self._checkpoints.copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete the checkpoints of threads (`delete`), or all but the newest of each namespace (`keep_latest`). Older checkpoints that
        a channel of the newest one is computed from are kept."""
        await self._bridge.run(self._checkpoints.prune(thread_ids, strategy))

    # ── from threads ─────────────────────────────────────────────────────────────────────────────────────────────

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `aget_tuple`."""
        return self._bridge.run_blocking(self._checkpoints.get(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 -- the name in LangGraph
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """See `alist`."""
        rows = self._checkpoints.find(config, filter, before, limit)
        try:
            while (row := self._bridge.run_blocking(_next(rows))) is not None:
                yield row
        finally:
            self._bridge.run_blocking(_close(rows))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `aput`."""
        return self._bridge.run_blocking(self._checkpoints.put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See `aput_writes`."""
        self._bridge.run_blocking(self._checkpoints.put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """See `adelete_thread`."""
        self._bridge.run_blocking(self._checkpoints.delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See `adelete_for_runs`."""
        self._bridge.run_blocking(self._checkpoints.delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See `acopy_thread`."""
        self._bridge.run_blocking(self._checkpoints.copy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See `aprune`."""
        self._bridge.run_blocking(self._checkpoints.prune(thread_ids, strategy))


async def _next(rows: AsyncGenerator[CheckpointTuple, None]) -> CheckpointTuple | None:
    return await anext(rows, None)


async def _close(rows: AsyncGenerator[CheckpointTuple, None]) -> None:
    await rows.aclose()
