"""Puts `OnwardStore` in the place of LangGraph's store in memory, for the tests of that store. Each store has a tenant of its own."""

from __future__ import annotations

import atexit
import os
from typing import Any

import langgraph.store.memory

from onward import Onward
from onward.integrations.langgraph import OnwardStore

APP = Onward(os.environ["ONWARD_SUITE_DB"])
OPENED = APP.in_thread()
OPENED.__enter__()
atexit.register(OPENED.__exit__, None, None, None)


class Fresh(OnwardStore):
    def __init__(self, **options: Any) -> None:
        super().__init__(APP, tenant=os.urandom(8).hex(), **options)


langgraph.store.memory.InMemoryStore = Fresh  # type: ignore[misc,assignment]
