"""Verbs of both clients about the place as a whole: its schedules, queues, workers and numbers, and what leaves it."""

from __future__ import annotations

from onward.client import parse as reading
from onward.client.introspection import FactVerbs
from onward.client.script import Script, verb
from onward.client.sending import path
from onward.service.cluster import Queue, Stats, WorkerView
from onward.service.schedules import Schedule
from onward.service.subscriptions import Delivery

Deliveries = list[Delivery]


class PlaceVerbs(FactVerbs):
    """What both clients can ask about it."""

    @verb
    def schedules(self) -> Script[list[Schedule]]:
        """All schedules, by name."""
        said = (yield from self.asked("GET", "/api/schedules")).json
        return [reading.schedule_of(one) for one in said["schedules"]]

    @verb
    def pause_schedule(self, name: str) -> Script[Schedule]:
        """No tick until it is unpaused. Raises ScheduleNotFound."""
        return reading.schedule_of((yield from self.asked("POST", f"{path('schedules', name)}/pause", again=True)).json)

    @verb
    def unpause_schedule(self, name: str) -> Script[Schedule]:
        """Go on with its next tick from now."""
        answer = yield from self.asked("POST", f"{path('schedules', name)}/unpause", again=True)
        return reading.schedule_of(answer.json)

    @verb
    def trigger(self, name: str) -> Script[str]:
        """Submit the task of a schedule now, beside its ticks; its id. Not sent twice: that would be two."""
        return str((yield from self.asked("POST", f"{path('schedules', name)}/trigger")).json["task_id"])

    @verb
    def drain_queue(self, name: str) -> Script[Queue]:
        """Pause a queue; it is drained when its `running` is 0."""
        return reading.queue_of((yield from self.asked("POST", f"{path('queues', name)}/drain", again=True)).json)

    @verb
    def queues(self) -> Script[list[Queue]]:
        """All queues with what is unfinished in them, by name."""
        said = (yield from self.asked("GET", "/api/queues")).json
        return [reading.queue_of(one) for one in said["queues"]]

    @verb
    def pause_queue(self, name: str) -> Script[Queue]:
        """Let nobody start anything of a queue until `unpause_queue`; what runs goes on."""
        return reading.queue_of((yield from self.asked("POST", f"{path('queues', name)}/pause", again=True)).json)

    @verb
    def unpause_queue(self, name: str) -> Script[Queue]:
        """Let a queue go on."""
        return reading.queue_of((yield from self.asked("POST", f"{path('queues', name)}/unpause", again=True)).json)

    @verb
    def workers(self) -> Script[list[WorkerView]]:
        """All workers that were not declared dead."""
        said = (yield from self.asked("GET", "/api/workers")).json
        return [reading.worker_of(one) for one in said["workers"]]

    @verb
    def stats(self) -> Script[Stats]:
        """How many tasks there are, by state and reason, and what the workers manage."""
        return reading.stats_of((yield from self.asked("GET", "/api/stats")).json)

    @verb
    def deliveries(
        self, *, state: str | None = None, task: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Script[tuple[Deliveries, str | None]]:
        """Events on their way out, newest first, and the cursor for the next page: pending, delivered, or failed for good."""
        asked = {"state": state, "task": task, "limit": limit, "cursor": cursor}
        query = {name: value for name, value in asked.items() if value is not None}
        said = (yield from self.asked("GET", "/api/deliveries", query=query)).json
        return [reading.delivery_of(one) for one in said["deliveries"]], said["next"]

    @verb
    def redeliver(self, delivery_id: str) -> Script[Delivery]:
        """Send an event again now: the same id, the same bytes. Not asked twice."""
        answer = yield from self.asked("POST", f"{path('deliveries', delivery_id)}/redeliver")
        return reading.delivery_of(answer.json)
