"""The work of `disk.py` as a graph of LangGraph, with no model. One line makes it durable.

$ LOGS=/var/log/shop onward worker examples.disk_langgraph:app
$ onward submit devops '{"notes": []}' --follow
$ onward answer                 # with "yes" it deletes the logs
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from examples import disk
from onward import Onward


class State(TypedDict):
    """What was seen and done."""

    notes: Annotated[list[str], operator.add]


def look(_: State) -> dict[str, Any]:
    return {"notes": [disk.check_disk()]}


def ask(state: State) -> dict[str, Any]:
    return {"notes": [interrupt(f"{state['notes'][-1]}. Delete all but the latest?")]}


def clean(_: State) -> dict[str, Any]:
    return {"notes": [disk.clean_logs(keep=1)]}


builder = StateGraph(State)
for node in (look, ask, clean):
    builder.add_node(node.__name__, node)
builder.add_edge(START, "look")
builder.add_edge("look", "ask")
builder.add_conditional_edges("ask", lambda state: "clean" if state["notes"][-1] == "yes" else END)
builder.add_edge("clean", END)

app = Onward()
app.langgraph("devops", builder)
