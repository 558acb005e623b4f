"""The doors through which simulated processes reach the one store, and the faults of the network between.

A door is made from the Store protocol: each verb becomes a message that travels, is carried out in one instant, and is
answered, if the weather lets it. Once sent, a message no longer depends on its sender: it arrives although the sender
was killed meanwhile, and it may arrive after the sender got the error that the store cannot be reached.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import inspect
import operator
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, get_type_hints

from onward.core import record as r
from onward.errors import OnwardError, StoreUnavailable
from onward.store.port.core import Store
from onward.store.shared.predecessor import WitnessLost
from tests.sim.loop import Process, SimLoop
from tests.sim.watch import Watch
from tests.sim.weather import Weather


def _verbs(port: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(port, inspect.iscoroutinefunction)]


def _ports() -> Iterator[tuple[str, type]]:
    """The ports that the Store hands out, by the names of its attributes."""
    properties = inspect.getmembers(Store, lambda member: isinstance(member, property))
    parts = get_type_hints(Store) | {name: get_type_hints(member.fget)["return"] for name, member in properties}
    for name, port in parts.items():
        if port.__module__.startswith("onward.store."):
            yield name, port


PORTS = dict(_ports())
LOCAL = {"open", "close", "workers.attend"}
REPEATABLE = {
    "submit",
    "save",
    "workers.heartbeat",
    "workers.join",
    "workers.leave",
    "release",
    "workers.rescue",
    "wake",
    "handlers.register",
    "queues.set_limits",
    "prioritize",
    "get",
}
"""Verbs whose second call must return the same as the first."""


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a verb of the inline store, which never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a verb of an inline store waited for something")


@dataclasses.dataclass(slots=True, eq=False)
class Message:
    """One call on its way to the store."""

    door: Door
    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    future: asyncio.Future[Any]
    fate: str


class Network:
    """Between the doors and the store."""

    def __init__(self, loop: SimLoop, store: Store, watch: Watch, weather: Weather, rng: random.Random) -> None:
        self.loop, self.store, self.watch, self.weather, self.rng = loop, store, watch, weather, rng
        self.seen: Counter[str] = watch.seen
        self.outage_until = 0.0
        self.doors: list[Door] = []
        self.killer: Callable[[Process], bool] = lambda _process: False
        self.closed = False
        self._context = contextvars.Context()
        self._unsure: dict[int, Any] = {}
        self._frozen: list[Message] = []

    def send(self, door: Door, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> asyncio.Future[Any]:
        message = Message(door, verb, args, kwargs, self.loop.create_future(), self._fate(verb, args))
        self._after(self._lag(), self._arrive, message)
        return message.future

    def _after(self, delay: float, callback: Callable[..., None], *args: Any) -> None:
        self.loop.call_later(delay, callback, *args, context=self._context)

    def _fate(self, verb: str, args: tuple[Any, ...]) -> str:
        roll = self.rng.random()
        if self.weather.freeze and self.rng.random() < self.weather.freeze * self._worth_freezing(verb, args):
            return "freeze"
        for fate in ("fail", "lose", "late", "twice", "hang", "die"):
            roll -= getattr(self.weather, fate)
            if roll < 0:
                return fate
        return "fine"

    def _lag(self) -> float:
        if self.weather.slow and self.rng.random() < self.weather.slow:
            return self.rng.choice([0.3, 1.0, 3.0, 8.0]) * self.rng.random()
        return self.weather.lag * self.rng.random()

    def _arrive(self, message: Message) -> None:
        now, fate = self.loop.time(), message.fate
        if self.closed:
            return
        if now < self.outage_until or now < message.door.cut_until:
            self._answer(message, error=True)
        elif fate in {"fail", "hang"}:
            self._answer(message, error=True, wait=self.rng.uniform(2, 25) if fate == "hang" else 0)
        elif fate == "late":
            self._answer(message, error=True)
            self._after(self.rng.choice([0.1, 1.0, 10.0, 40.0]) * self.rng.random(), self._carry_out_late, message)
        elif fate == "freeze":
            self._freeze(message)
        elif fate == "die":
            if self.rng.random() < 0.5:
                self._carry_out(message)
            if not self.killer(message.door.process):
                self._answer(message, error=True)
        else:
            answer = self._carry_out(message)
            if fate == "twice" and message.verb in REPEATABLE:
                answer = self._again(message, answer)
            self._answer(message, answer, error=fate == "lose")

    def _worth_freezing(self, verb: str, args: tuple[Any, ...]) -> float:
        if verb == "save":
            several = len(args[1].entries) > len({entry[0] for entry in args[1].entries})
            return 8 if several else 3 if any(entry[3] == r.STEP_DONE for entry in args[1].entries) else 1
        ready = any(row.worker is None and row.due_at is None for row in self.watch.queue.values())
        return 2 if verb == "claim" and ready else 0

    def _freeze(self, message: Message) -> None:
        """Freezes the sender at a bad moment. Its records arrive when another process has gone on with the task; or they were
        written, and it gets the answer late; or its claim arrives when its lease is over."""
        process, lease = message.door.process, self.weather.lease
        message.fate = "fine"
        kinds = {entry[3] for entry in message.args[1].entries} if message.verb == "save" else set()
        if self.rng.random() < (0.7 if kinds == {r.STEP_DONE} else 0.3 if kinds else 0):
            message.fate = "done"
            self._answer(message, self._carry_out(message))
        self._frozen.append(message)
        process.stop()
        self.watch.note(f"{process} freezes")
        self._after(lease * (4.0 if message.verb == "save" else self.rng.uniform(0.8, 1.5)), self._thaw, message)

    def taken_over(self, process: Process) -> None:
        """Another process took a task of this one: its frozen messages go on soon."""
        for message in self._frozen:
            if message.door.process is process:
                most = self.weather.lease if message.fate == "done" else 0.1
                self._after(self.rng.random() * most, self._thaw, message)

    def _thaw(self, message: Message) -> None:
        if message not in self._frozen:
            return
        self._frozen.remove(message)
        if message.fate != "done":
            self._arrive(message)
        message.door.process.go_on()

    def _carry_out(self, message: Message) -> Any:
        answer: Any
        self.watch.before(message.verb, message.args, message.kwargs)
        try:
            answer = drive(operator.attrgetter(message.verb)(self.store)(*message.args, **message.kwargs))
        except (OnwardError, WitnessLost) as error:
            answer = error
        except Exception as error:
            self.watch.fault(f"{message.verb} raised {error!r}")
        self.watch.after(message.door.process, message.verb, message.args, message.kwargs, answer)
        if message.verb == "save" and not isinstance(answer, WitnessLost):
            self._count_save(message, answer)
        return answer

    def _carry_out_late(self, message: Message) -> None:
        if not self.closed:
            self.seen["a call was carried out after its sender was told it failed"] += 1
            self._carry_out(message)

    def _again(self, message: Message, first: Any) -> Any:
        second = self._carry_out(message)
        if message.verb in {"save", "submit", "prioritize"} and repr(second) != repr(first):
            self.watch.fault(f"{message.verb} sent twice answered {first!r} and then {second!r}")
        return second

    def _count_save(self, message: Message, answer: Any) -> None:
        batch = message.args[1]
        if id(batch) in self._unsure:
            self.seen["a save of unknown fate was not mine" if answer else "a save of unknown fate was mine"] += 1
        if answer:
            self.seen["a write was fenced"] += 1
            self.seen["a late write met a pruned task"] += bool(answer & self.watch.pruned)
            for id_ in answer:
                several = sum(entry[0] == id_ for entry in batch.entries) > 1
                self.seen["several records of a task were fenced together"] += several

    def _answer(self, message: Message, answer: Any = None, *, error: bool = False, wait: float = 0.0) -> None:
        if error and message.verb == "save":
            self._unsure[id(message.args[1])] = message.args[1]
        if error and message.verb == "claim" and answer:
            self.seen["the answer to a claim was lost"] += 1
        if error:
            answer = StoreUnavailable("the simulated store cannot be reached")
        elif message.verb == "claim" and answer and self.rng.random() < 4 * self.weather.slow:
            wait = self.weather.heartbeat * self.rng.uniform(1, 3.5)  # long enough to count as lost
        self._after(wait + self._lag(), self._deliver, message.future, answer)

    @staticmethod
    def _deliver(future: asyncio.Future[Any], answer: Any) -> None:
        if future.done():
            return
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def nudge(self, sender: Door, topic: str) -> None:
        for door in self.doors:
            if door is not sender and topic in door.listeners and not door.process.dead:
                for _ in range(self.rng.choice([1, 1, 1, 2])):
                    if self.rng.random() >= self.weather.nudge_lost:
                        self._after(self._lag(), door.process.call, door.heard, topic)


class Door:
    """The Store as one process sees it. The verbs are added below, from the protocol."""

    codec = None
    where, one_machine, inline, receives_nudges, out_of_process = "the simulated store", False, True, True, True

    def __init__(self, network: Network, process: Process) -> None:
        self.network, self.process = network, process
        self.cut_until = 0.0
        self.listeners: dict[str, list[Callable[[], None]]] = {}
        network.doors.append(self)
        for name, port in PORTS.items():
            setattr(self, name, PortDoor(self, name, port))

    async def open(self, *, migrate: bool | None = None) -> None: ...

    async def close(self) -> None: ...

    def clone(self) -> Door:
        return self

    def nudge(self, topic: str, tasks: Sequence[str] = ()) -> None:
        self.heard(topic)
        self.network.nudge(self, topic)

    def heard(self, topic: str) -> None:
        for callback in list(self.listeners.get(topic, ())):
            callback()

    def listen(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        self.listeners.setdefault(topic, []).append(callback)
        return lambda: self.listeners[topic].remove(callback)


class PortDoor:
    """A port of the Store as one process sees it."""

    def __init__(self, door: Door, name: str, port: type) -> None:
        for verb in _verbs(port):
            setattr(self, verb, functools.partial(_send, door, f"{name}.{verb}"))

    def announce(self) -> None:
        """Does nothing: no simulated process follows records."""


async def _send(door: Door, verb: str, /, *args: Any, **kwargs: Any) -> Any:
    return "" if verb in LOCAL else await door.network.send(door, verb, args, kwargs)


def _method(verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def call(self: Door, *args: Any, **kwargs: Any) -> Any:
        return await _send(self, verb, *args, **kwargs)

    return call


for _name in _verbs(Store):
    if _name not in LOCAL:
        setattr(Door, _name, _method(_name))
