"""LangGraph on Onward: a checkpointer and a store on the database of an app. `pip install 'onward[langgraph]'`."""

from __future__ import annotations

from onward.integrations.langgraph.saver import OnwardSaver
from onward.integrations.langgraph.store import OnwardStore

__all__ = ["OnwardSaver", "OnwardStore"]
