"""The same clerks (`tests.faults.clerks`) as a graph of LangGraph: model requests and tools are nodes, and the approval is an interrupt."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt

from onward import Onward, Retry
from rig.ledger import Ledger
from tests.faults.clerks import PLACES, Clerk


class State(TypedDict):
    """The state of the graph."""

    notes: Annotated[list[str], operator.add]


GOAL: dict[str, Any] = {"notes": []}
PAID = {"notes": ["paid 7"]}
"""The result of the node that pays, for the person who says that it happened."""
ANSWER = {
    "notes": [
        *(f"nothing in the {place}" for place in PLACES),
        "deposited 5",
        "nothing in the cellar",
        "paid 7",
        "done",
    ]
}


def app_of(options: dict[str, Any], **settings: Any) -> Onward:
    """The app of a crew, and of the test."""
    app = Onward(options["db"], **settings)
    add(app, Ledger(options["ledger"]))
    return app


def add(app: Onward, ledger: Ledger) -> GraphClerk:
    """Register the handler of the clerks."""
    clerk = GraphClerk(app, ledger)
    app.langgraph("clerk", clerk.builder(), node_retry=Retry(attempts=3, first=0.01))
    return clerk


class GraphClerk(Clerk):
    """The world of the graphs of one process."""

    def builder(self) -> StateGraph[Any, Any, Any, Any]:
        async def look(place: str) -> dict[str, Any]:
            await self._note("looked", f"look {place}")
            return {"notes": [f"nothing in the {place}"]}

        async def cellar(state: State) -> dict[str, Any]:
            return await look("cellar")

        async def deposit(cents: int) -> dict[str, Any]:
            await self._note("deposited", "deposit")
            return {"notes": [f"deposited {cents}"]}

        async def review(state: State) -> None:
            answer = interrupt({"action_requests": [{"name": "pay", "args": {"cents": 7}}]})
            assert answer == {"decisions": [{"type": "approve"}]}

        async def pay(state: State) -> dict[str, Any]:
            await self._note("paid", "pay")
            return PAID

        graph = StateGraph(State)
        for turn, name in enumerate(("first", "second", "last")):
            graph.add_node(name, self._model(turn))
        graph.add_node("look", look)
        graph.add_node("cellar", cellar)
        graph.add_node("deposit", deposit, metadata={"onward": {"effect": "idempotent"}})
        graph.add_node("review", review)
        graph.add_node("pay", pay, metadata={"onward": {"effect": "once", "retry": 1}})
        graph.add_edge(START, "first")
        graph.add_conditional_edges("first", self._tools, ["look", "deposit"])
        graph.add_edge("look", "second")
        graph.add_edge("deposit", "second")
        graph.add_edge("second", "review")
        graph.add_edge("second", "cellar")
        graph.add_edge(["review", "cellar"], "pay")
        graph.add_edge("pay", "last")
        graph.add_edge("last", END)
        return graph

    def _model(self, turn: int) -> Any:
        async def ask(state: State) -> dict[str, Any]:
            await self._note("asked", f"turn {turn}")
            return {"notes": ["done"] if turn == 2 else []}

        return ask

    @staticmethod
    def _tools(state: State) -> list[Send]:
        return [*(Send("look", place) for place in PLACES), Send("deposit", 5)]
