"""LangGraph on Onward: a checkpointer and a store on the database of an app. `pip install 'onward[langgraph]'`.

`app.langgraph("flow", builder)` registers a graph as a handler.
"""

from onward.integrations.versions import check_version

check_version("langgraph", "1.2", "1.3", "langgraph")
check_version("langgraph-checkpoint", "4.3", "5", "langgraph")

from onward.integrations.langgraph.saver import OnwardSaver  # noqa: E402 -- another version fails here
from onward.integrations.langgraph.store import OnwardStore  # noqa: E402 -- as above

__all__ = ["OnwardSaver", "OnwardStore"]
