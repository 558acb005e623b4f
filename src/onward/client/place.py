"""Verbs of both clients about the place as a whole: its schedules, queues, workers and numbers."""

from __future__ import annotations

from onward.client import reading
from onward.client.asking import Asking, path
from onward.client.script import Script, verb
from onward.place import Queue, Stats, WorkerView
from onward.schedules import Schedule


class PlaceVerbs(Asking):
    """What both clients can ask about it."""

    @verb
    def schedules(self) -> Script[list[Schedule]]:
        """All schedules, by name."""
        said = (yield from self.asked("GET", "/api/schedules")).json
        return [reading.schedule_of(one) for one in said["schedules"]]

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
