"""Verbs of both clients that only look: how a task came to where it is, and what there is."""

from __future__ import annotations

from typing import Any

from onward.client import reading
from onward.client.asking import Asking, path
from onward.client.script import Script, verb
from onward.handlers import HandlerView
from onward.journals import Timeline, TurnView

Said = dict[str, Any]


class FactVerbs(Asking):
    """What both clients can look at."""

    @verb
    def whoami(self) -> Script[Said]:
        """Who asks, as the server sees it: the name of the key, its scopes and tenant, and the version of the server."""
        said: Said = (yield from self.asked("GET", "/api/whoami")).json
        return said

    @verb
    def handlers(self) -> Script[list[HandlerView]]:
        """What can be asked for, by name, and what it takes."""
        said = (yield from self.asked("GET", "/api/handlers")).json
        return [reading.known(HandlerView, one) for one in said["handlers"]]

    @verb
    def timeline(self, task_id: str, after: int = 0) -> Script[Timeline]:
        """How a task came to where it is, as a waterfall; with `after`, what has changed since that record."""
        answer = yield from self.asked("GET", f"{path('tasks', task_id)}/timeline", query={"after": after})
        return reading.timeline_of(answer.json)

    @verb
    def record(self, task_id: str, seq: int) -> Script[Said]:
        """One record, with what went in and what came out."""
        said: Said = (yield from self.asked("GET", f"{path('tasks', task_id)}/records/{seq}")).json
        return said

    @verb
    def turns(self, task_id: str, after: int = 0, limit: int = 100) -> Script[list[TurnView]]:
        """The turns of an agent after a number, in order."""
        query = {"after": after, "limit": limit}
        said = (yield from self.asked("GET", f"{path('tasks', task_id)}/turns", query=query)).json
        return [reading.turn_of(one) for one in said["turns"]]

    @verb
    def turn(self, task_id: str, number: int) -> Script[Said]:
        """Exactly what the model saw in a turn (`messages`), and what it said (`reply`)."""
        said: Said = (yield from self.asked("GET", f"{path('tasks', task_id)}/turns/{number}")).json
        return said
