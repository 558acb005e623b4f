"""Verbs of both clients about the whole installation: schedules, queues, workers, figures, deliveries, intakes."""

from __future__ import annotations

from onward.client.introspection import QueryVerbs
from onward.client.script import Script, verb
from onward.client.sending import path
from onward.core.view_json import from_json
from onward.core.views import (
    CodeVersion,
    DeadLetter,
    DeadLetterContent,
    Delivery,
    Intake,
    Queue,
    Schedule,
    Stats,
    WorkerView,
)

Deliveries = list[Delivery]
Letters = list[DeadLetter]


class ClusterVerbs(QueryVerbs):
    """Verbs about the whole installation."""

    @verb
    def schedules(self) -> Script[list[Schedule]]:
        """All schedules, by name, of all pages."""
        return [from_json(Schedule, schedule) for schedule in (yield from self._pages("/api/schedules", "schedules"))]

    @verb
    def pause_schedule(self, name: str) -> Script[Schedule]:
        """Pause a schedule: it has no tick until it is unpaused. Raises ScheduleNotFound."""
        return (yield from self._change_schedule(name, "pause"))

    @verb
    def unpause_schedule(self, name: str) -> Script[Schedule]:
        """Go on with the next tick from now."""
        return (yield from self._change_schedule(name, "unpause"))

    def _change_schedule(self, name: str, change: str) -> Script[Schedule]:
        response = yield from self._call("POST", f"{path('schedules', name)}/{change}", idempotent=True)
        return from_json(Schedule, response.json)

    @verb
    def trigger(self, name: str) -> Script[str]:
        """Submit the task of a schedule now, beside its ticks; its id. Not sent twice: that would submit two tasks."""
        return str((yield from self._call("POST", f"{path('schedules', name)}/trigger")).json["task_id"])

    @verb
    def queues(self) -> Script[list[Queue]]:
        """All queues with their unfinished tasks, by name, of all pages."""
        return [from_json(Queue, queue) for queue in (yield from self._pages("/api/queues", "queues"))]

    @verb
    def drain_queue(self, name: str) -> Script[Queue]:
        """Pause a queue; it is drained when its `running` is 0."""
        return (yield from self._change_queue(name, "drain"))

    @verb
    def pause_queue(self, name: str) -> Script[Queue]:
        """Pause a queue: no worker starts a task of it until `unpause_queue`. Running tasks go on."""
        return (yield from self._change_queue(name, "pause"))

    @verb
    def unpause_queue(self, name: str) -> Script[Queue]:
        """Unpause a queue."""
        return (yield from self._change_queue(name, "unpause"))

    def _change_queue(self, name: str, change: str) -> Script[Queue]:
        response = yield from self._call("POST", f"{path('queues', name)}/{change}", idempotent=True)
        return from_json(Queue, response.json)

    @verb
    def workers(self) -> Script[list[WorkerView]]:
        """All workers that were not declared dead, of all pages."""
        return [from_json(WorkerView, worker) for worker in (yield from self._pages("/api/workers", "workers"))]

    @verb
    def versions(self) -> Script[list[CodeVersion]]:
        """The versions of the code that workers have, or that ran the latest shift of an unfinished task."""
        response = yield from self._call("GET", "/api/versions")
        return [from_json(CodeVersion, version) for version in response.json["versions"]]

    @verb
    def stats(self) -> Script[Stats]:
        """How many tasks there are, by state and reason, and how many the workers finish."""
        return from_json(Stats, (yield from self._read("/api/stats")))

    @verb
    def deliveries(
        self, *, state: str | None = None, task: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Script[tuple[Deliveries, str | None]]:
        """Deliveries of events, newest first, and the cursor for the next page: pending, delivered, or failed for good."""
        document = yield from self._read("/api/deliveries", state=state, task=task, limit=limit, cursor=cursor)
        return [from_json(Delivery, delivery) for delivery in document["deliveries"]], document["next"]

    @verb
    def redeliver(self, delivery_id: str) -> Script[Delivery]:
        """Send an event again now: the same id, the same bytes. The request is not sent twice."""
        response = yield from self._call("POST", f"{path('deliveries', delivery_id)}/redeliver")
        return from_json(Delivery, response.json)

    @verb
    def intakes(self) -> Script[list[Intake]]:
        """All intakes, by name, of all pages: how each does, and how many dead letters it has."""
        return [from_json(Intake, intake) for intake in (yield from self._pages("/api/intakes", "intakes"))]

    @verb
    def dead_letters(
        self, intake: str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Script[tuple[Letters, str | None]]:
        """Messages that could not become tasks, newest first, and the cursor for the next page."""
        document = yield from self._read("/api/dead-letters", intake=intake, limit=limit, cursor=cursor)
        return [from_json(DeadLetter, letter) for letter in document["letters"]], document["next"]

    @verb
    def dead_letter(self, letter_id: str) -> Script[DeadLetterContent]:
        """One dead letter with its headers and its body. Raises NotFound."""
        return from_json(DeadLetterContent, (yield from self._read(path("dead-letters", letter_id))))

    @verb
    def redrive_letters(
        self,
        letter_id: str | None = None,
        *,
        intake: str | None = None,
        all: bool = False,  # noqa: A002
    ) -> Script[int]:
        """Try again one dead letter, those of an intake, or all; how many that were. Raises NotFound."""
        body = {"id": letter_id, "intake": intake, "all": all}
        return int((yield from self._call("POST", "/api/dead-letters/redrive", body, idempotent=True)).json["letters"])

    @verb
    def drop_letters(
        self,
        letter_id: str | None = None,
        *,
        intake: str | None = None,
        all: bool = False,  # noqa: A002
    ) -> Script[int]:
        """Delete one dead letter, those of an intake, or all, for good; how many that were. The request is not sent twice. Raises
        NotFound."""
        body = {"id": letter_id, "intake": intake, "all": all}
        return int((yield from self._call("POST", "/api/dead-letters/drop", body)).json["letters"])
