"""Verbs of both clients that only read: the history of a task, handlers, usage, and the system."""

from __future__ import annotations

from typing import Any

from onward.client.parse import parse_task, parse_timeline
from onward.client.script import Script, verb
from onward.client.sending import BaseClient, path
from onward.core.task import SAME, Task
from onward.core.text import iso
from onward.core.view_json import from_json
from onward.core.views import HandlerView, Timeline, TurnView, UsageReport

Json = dict[str, Any]


class QueryVerbs(BaseClient):
    """Verbs that only read."""

    def _read(self, path: str, **query: Any) -> Script[Json]:
        """The JSON document at a path; parameters that are None are left out."""
        given = {name: value for name, value in query.items() if value is not None}
        document: Json = (yield from self._call("GET", path, query=given)).json
        return document

    def _pages(self, path: str, name: str) -> Script[list[Json]]:
        """The items of a list (`name` in the documents) of all pages."""
        items: list[Json] = []
        cursor: str | None = None
        while True:
            document = yield from self._read(path, cursor=cursor)
            items += document[name]
            if (cursor := document.get("next")) is None:
                return items

    @verb
    def whoami(self) -> Script[Json]:
        """The caller as the server sees it: the name of the key, its scopes and tenant, and the version of the server."""
        return (yield from self._read("/api/whoami"))

    @verb
    def handlers(self) -> Script[list[HandlerView]]:
        """All handlers by name, and the inputs that they take, of all pages."""
        return [from_json(HandlerView, handler) for handler in (yield from self._pages("/api/handlers", "handlers"))]

    @verb
    def timeline(self, task_id: str, after: int = 0) -> Script[Timeline]:
        """The journal of a task as a waterfall, of all pages; with `after`, only the bars and marks that changed after that record."""
        route = f"{path('tasks', task_id)}/timeline"
        timeline = parse_timeline((yield from self._read(route, after=after)))
        while timeline.more:
            timeline = timeline.then(parse_timeline((yield from self._read(route, after=timeline.seq))))
        return timeline

    @verb
    def record(self, task_id: str, seq: int) -> Script[Json]:
        """One record, with its input and output."""
        return (yield from self._read(f"{path('tasks', task_id)}/records/{seq}"))

    @verb
    def children(
        self, task_id: str, limit: int = 100, cursor: str | None = None
    ) -> Script[tuple[list[Task], str | None]]:
        """The children of a task, newest first, and the cursor for the next page."""
        document = yield from self._read(f"{path('tasks', task_id)}/children", limit=limit, cursor=cursor)
        return [parse_task(task) for task in document["tasks"]], document["next"]

    @verb
    def fork_plan(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> Script[Json]:  # noqa: A002
        """The steps that a fork would repeat (`would_repeat`), and how many records it would begin with (`keeps`). No task is made."""
        body = {"preview": True} | ({} if at is None else {"at": at}) | ({} if input is SAME else {"input": input})
        document: Json = (yield from self._call("POST", f"{path('tasks', task_id)}/fork", body, idempotent=True)).json
        return document

    @verb
    def usage(self, by: str = "agent", since: float | None = None, until: float | None = None) -> Script[UsageReport]:
        """The usage of models, by agent, model, key or day, of tasks that were submitted between `since` and `until`."""
        document = yield from self._read("/api/usage", by=by, since=iso(since), until=iso(until))
        return from_json(UsageReport, document)

    @verb
    def system(self) -> Script[Json]:
        """The database, the settings, the versions, and the findings of `onward doctor`."""
        return (yield from self._read("/api/system"))

    @verb
    def turns(self, task_id: str, after: int = 0, limit: int = 100) -> Script[list[TurnView]]:
        """The turns of an agent after a number, in order."""
        document = yield from self._read(f"{path('tasks', task_id)}/turns", after=after, limit=limit)
        return [from_json(TurnView, turn) for turn in document["turns"]]

    @verb
    def turn(self, task_id: str, number: int) -> Script[Json]:
        """The messages that the model got in a turn (`messages`), and its reply (`reply`)."""
        return (yield from self._read(f"{path('tasks', task_id)}/turns/{number}"))
