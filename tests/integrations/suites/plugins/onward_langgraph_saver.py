"""Puts `OnwardSaver` in the place of LangGraph's SQLite savers, for LangGraph's own tests. Each saver has a tenant of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator

import tests.conftest_checkpointer as checkpointers

from onward import Onward
from onward.integrations.langgraph import OnwardSaver

URL = os.environ["ONWARD_SUITE_DB"]


@contextlib.contextmanager
def blocking() -> Iterator[OnwardSaver]:
    with Onward(URL).in_thread() as app:
        yield OnwardSaver(app, tenant=os.urandom(8).hex())


@contextlib.asynccontextmanager
async def in_the_loop() -> AsyncIterator[OnwardSaver]:
    async with Onward(URL) as app:
        yield OnwardSaver(app, tenant=os.urandom(8).hex())


checkpointers._checkpointer_sqlite = blocking
checkpointers._checkpointer_sqlite_aio = in_the_loop
