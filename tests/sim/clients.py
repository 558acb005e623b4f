"""Clients: they submit, wait, cancel, resume and watch over a bad network, and keep the acknowledged tasks."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from onward import Onward
from onward.core import record as r
from onward.core.task import State, Task
from onward.errors import (
    KeyConflict,
    OnwardError,
    ResultTimeout,
    StateConflict,
    StoreUnavailable,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
)
from tests.sim.watch import Watch
from tests.sim.weather import Weather
from tests.sim.work import Op, draw, draw_branches

T = TypeVar("T")


class Client:
    """A client with several orders at once."""

    def __init__(self, app: Onward, watch: Watch, rng: random.Random, name: str, weather: Weather) -> None:
        self._app, self._watch, self._rng, self._name, self._weather = app, watch, rng, name, weather
        self.acknowledged: dict[str, tuple[str, list[Op]]] = {}
        self.cancelled: set[str] = set()
        self.seen = watch.seen

    async def order(self, number: int) -> None:
        """One task from its submit to its end."""
        await asyncio.sleep(self._rng.uniform(0, self._weather.horizon * 0.6))
        name, ops, options = draw(self._rng, self._weather.poison)
        if self._weather.waits and self._rng.random() < self._weather.waits:
            ops.insert(self._rng.choice([0, len(ops)]), draw_branches(self._rng))
        key = f"{self._name}-{number}" if self._rng.random() < 0.7 else None
        task_id = await self._submit(name, ops, key, options)
        self.acknowledged[task_id] = (name, ops)
        if self._rng.random() < 0.1:
            await self._submit_many(name, ops, options)
        steer = asyncio.ensure_future(self._steer(task_id, name, ops, key, options))
        if self._weather.waits:
            await self._send(task_id)
        try:
            task = await self._until_ended(task_id)
            for _ in range(2):
                if task.state is State.FAILED and self._rng.random() < 0.5:
                    await self._resume(task_id)
                    task = await self._until_ended(task_id)
        finally:
            await steer
        if self._rng.random() < 0.4:
            await self._prune(task_id)

    # ── calls that are repeated ──────────────────────────────────────────────────────────────────────────────────

    async def _until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeats the call until the store answers."""
        while True:
            try:
                return await call()
            except StoreUnavailable:
                self.seen["a client sent a call again"] += 1
                await asyncio.sleep(self._rng.uniform(0.05, 1))

    async def _submit(self, name: str, ops: list[Op], key: str | None, options: dict[str, Any]) -> str:
        handle = await self._until_answered(lambda: self._app.submit(name, {"ops": ops}, key=key, **options))
        picture = self._watch.tasks.get(handle.id)
        if picture is None or not picture.records:
            self._watch.fault(f"task {handle.id} was acknowledged and is not there")
        return handle.id

    async def _submit_many(self, name: str, ops: list[Op], options: dict[str, Any]) -> None:
        handles = await self._until_answered(lambda: self._app.submit_many(name, [{"ops": ops}] * 3, **options))
        self.acknowledged |= {handle.id: (name, ops) for handle in handles}
        if not {handle.id for handle in handles} <= self._watch.tasks.keys():
            self._watch.fault("some of many tasks were acknowledged and are not there")

    async def _resume(self, task_id: str) -> None:
        try:
            await self._until_answered(lambda: self._app.resume(task_id))
        except StateConflict:  # another client, or an earlier try of this one, was first
            pass
        if not any(entry.kind == r.RESUMED for entry in self._watch.tasks[task_id].records):
            self._watch.fault(f"task {task_id[-4:]} was resumed and its journal knows nothing of it")
        self.seen["a task was resumed"] += 1

    async def _prune(self, task_id: str) -> None:
        """Prunes the task as soon as that is allowed. A worker that still runs it unknowingly must get no further."""
        while True:
            try:
                await self._until_answered(lambda: self._app.prune(task_id))
            except StateConflict:  # it has ended just now
                await asyncio.sleep(self._rng.uniform(5, 40))
                continue
            except TaskNotFound:  # an earlier try got through
                pass
            break
        if task_id not in self._watch.pruned:
            self._watch.fault(f"task {task_id[-4:]} was pruned and the store knows nothing of it")

    # ── results ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _until_ended(self, task_id: str) -> Task:
        while True:
            try:
                return await self._until_answered(lambda: self._await_end(task_id))
            except ResultTimeout:
                await asyncio.sleep(self._rng.uniform(2, 20))

    async def _await_end(self, task_id: str) -> Task:
        since = len(self._watch.tasks[task_id].endings)
        state, outcome = State.COMPLETED, None
        try:
            outcome = await self._app.handle(task_id).result(self._rng.choice([0.2, 3]))
        except TaskFailed as error:
            state, outcome = State.FAILED, error.error
        except TaskCancelled:
            state = State.CANCELLED
        endings = self._watch.tasks[task_id].endings[max(0, since - 1) :]
        truths = [(kind, _outcome_of(kind, data)) for _, kind, data in endings]
        if (f"task.{state}", outcome) not in truths:
            self._watch.fault(f"a client got {state} {outcome!r} of task {task_id[-4:]}, but the journal has {truths}")
        return await self._until_answered(lambda: self._app.get(task_id))

    # ── steering ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _steer(self, task_id: str, name: str, ops: list[Op], key: str | None, options: dict[str, Any]) -> None:
        await asyncio.sleep(self._rng.choice([0.0, 0.5, 3.0, 15.0]) * self._rng.random())
        roll = self._rng.random()
        try:
            if roll < 0.2:
                await self._cancel(task_id)
            elif roll < 0.3:
                await self._until_answered(lambda: self._app.prioritize(task_id, self._rng.randint(-9, 9)))
            elif roll < 0.4:
                await asyncio.wait_for(self._tail(task_id), 60)
            elif roll < 0.5 and key is not None:
                await self._same_again(task_id, name, ops, key, options)
            elif 0.5 <= roll < 0.8:
                await self._pause(task_id)
        except (StateConflict, TimeoutError):
            pass

    async def _pause(self, task_id: str) -> None:
        """Pauses the task. After the answer, and until the resume, no step of it may begin."""
        for _ in range(self._rng.randint(1, 3)):
            held = task_id in self._watch.queue and self._watch.queue[task_id].worker is not None
            if (await self._until_answered(lambda: self._app.pause(task_id))).ended:
                return
            self._watch.paused.add(task_id)
            self.seen["a task was paused, with a worker at it"] += held
            await asyncio.sleep(self._rng.choice([0.1, 3.0, 30.0]) * self._rng.random())
            self._watch.paused.discard(task_id)
            try:
                await self._until_answered(lambda: self._app.resume(task_id))
            except StateConflict:  # an earlier try got through
                pass

    async def _send(self, task_id: str) -> None:
        """Sends some signals, in bursts, some of them twice."""
        for number in range(self._rng.randint(2, 8)):
            await asyncio.sleep(self._rng.choice([0, 0, 0, 0.1, 1.0, 5.0]))
            name = self._rng.choice(["go", "order"])
            for _ in range(self._rng.choice([1, 1, 2])):
                try:
                    await self._until_answered(
                        lambda: self._app.signal(task_id, name, f"{name}-{number}", id=f"{name}-{number}")
                    )
                except (StateConflict, TaskNotFound):
                    return

    async def _cancel(self, task_id: str) -> None:
        held = task_id in self._watch.queue and self._watch.queue[task_id].worker is not None
        try:
            task = await self._until_answered(lambda: self._app.cancel(task_id))
        except StateConflict:
            self.seen["the end came before the cancel"] += 1
            if self._watch.tasks[task_id].endings == []:
                self._watch.fault(f"cancel of {task_id[-4:]} was refused although it has not ended")
            raise
        self.seen["a cancel came before the end, with a worker at it"] += held
        self.cancelled.add(task_id)
        if task.state is not State.CANCELLED or self._watch.tasks[task_id].ended != r.CANCELLED:
            self._watch.fault(f"cancel of {task_id[-4:]} was acknowledged and it is {task.state}")

    async def _tail(self, task_id: str) -> None:
        after = 0
        while True:
            try:
                async for record in self._app.handle(task_id).tail(after):
                    entry = self._watch.tasks[task_id].records[record.seq - 1]
                    if record.seq != after + 1 or (record.kind, record.data) != (entry.kind, entry.data):
                        self._watch.fault(f"a reader after #{after} was shown {record}, and {entry} was written")
                    after = record.seq
                self.seen["a journal was followed to its end"] += 1
                return
            except StoreUnavailable:
                await asyncio.sleep(0.3)

    async def _same_again(self, task_id: str, name: str, ops: list[Op], key: str, options: dict[str, Any]) -> None:
        again = await self._submit(name, ops, key, options)
        if again != task_id:
            self._watch.fault(f"the key {key} gave task {task_id} and then {again}")
        self.seen["the same key gave the same task"] += 1
        try:
            await self._submit(name, [*ops, ["now"]], key, options)
        except KeyConflict:
            return
        self._watch.fault(f"the key {key} was accepted with another input")


class Person:
    """Resumes quarantined tasks."""

    def __init__(self, app: Onward, watch: Watch) -> None:
        self._app, self._watch = app, watch

    async def look(self) -> None:
        for task_id, row in sorted(self._watch.queue.items()):
            if row.reason == "quarantined" and row.worker is None:
                try:
                    await self._app.resume(task_id)
                except (TaskNotFound, StateConflict, OnwardError):
                    continue


def _outcome_of(kind: str, data: bytes) -> Any:
    value = json.loads(data)
    return value.get("result") if kind == r.COMPLETED else value.get("error")
