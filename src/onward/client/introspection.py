"""Verbs of both clients that only look: how a task came to where it is, and what there is."""

from __future__ import annotations

from typing import Any

from onward.client import parse as reading
from onward.client.script import Script, verb
from onward.client.sending import Asking, path
from onward.core.task import Task
from onward.core.text import iso
from onward.service.forks import SAME
from onward.service.handlers import HandlerView
from onward.service.timeline import Timeline, TurnView
from onward.service.usage import Report, Row

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
    def children(
        self, task_id: str, limit: int = 100, cursor: str | None = None
    ) -> Script[tuple[list[Task], str | None]]:
        """What a task has started, newest first, and the cursor for the next page."""
        query = {"limit": limit, **({} if cursor is None else {"cursor": cursor})}
        said = (yield from self.asked("GET", f"{path('tasks', task_id)}/children", query=query)).json
        return [reading.task_of(one) for one in said["tasks"]], said["next"]

    @verb
    def fork_plan(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> Script[Said]:  # noqa: A002
        """What a fork would do again (`would_repeat`), and how many records it would begin with (`keeps`); nothing is made."""
        body = {"preview": True} | ({} if at is None else {"at": at}) | ({} if input is SAME else {"input": input})
        said: Said = (yield from self.asked("POST", f"{path('tasks', task_id)}/fork", body, again=True)).json
        return said

    @verb
    def usage(self, by: str = "agent", since: float | None = None, until: float | None = None) -> Script[Report]:
        """What models took, by agent, model, key or day, of tasks that were submitted in a time."""
        query = {"by": by, "since": iso(since), "until": iso(until)}
        asked = {name: value for name, value in query.items() if value is not None}
        said = (yield from self.asked("GET", "/api/usage", query=asked)).json
        return Report(said["by"], [reading.known(Row, one) for one in said["rows"]], said["complete"])

    @verb
    def system(self) -> Script[Said]:
        """The database, the settings, the versions, and what `onward doctor` finds."""
        said: Said = (yield from self.asked("GET", "/api/system")).json
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
