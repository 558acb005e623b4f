"""A PostgreSQL store that is closed while one of its connections is being made."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from onward.app.connect import open_store
from tests.kit import only_postgres


@only_postgres
async def test_a_store_that_closes_while_it_connects_leaves_no_error(url: str) -> None:
    """A command may end before its listener is connected. asyncpg printed "Future exception was never retrieved" then."""
    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    for moment in range(20):
        store = open_store(url)
        await store.open()
        store.listen("ended", lambda: None)
        await asyncio.sleep(moment / 2_000)
        await store.close()
    gc.collect()
    assert reports == []
