"""A whole cluster in one process: machines with workers, clients, and a storm that ends.

Until the horizon the weather causes faults. Then it calms down, and every accepted task has to come to its end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from onward import Onward
from onward.engine.worker.worker import Worker
from onward.errors import OnwardError
from onward.store.sqlite.file import MEMORY
from tests.sim.clients import Client, Person
from tests.sim.clock import SimClock
from tests.sim.door import Door, Network, drive
from tests.sim.loop import Process, SimLoop
from tests.sim.planted import Planted
from tests.sim.verdict import verdict
from tests.sim.watch import Broken, Watch
from tests.sim.weather import BRANCHES, CALM, Weather, forecast
from tests.sim.work import Ledger, register

MAX_TURNS = 3_000_000
MAX_ROUNDS = 120


class Machine:
    """Runs a worker in a process; when the process ends, the machine starts another."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster, self.number, self.life = cluster, number, 0
        self.process: Process | None = None
        self.door: Door | None = None
        self.worker: Worker | None = None
        self.clock = SimClock(cluster.loop, skew=cluster.rng.uniform(-90, 90), base=cluster.rng.uniform(0, 1e6))

    def boot(self) -> None:
        self.life += 1
        cluster, name = self.cluster, f"w{self.number}.{self.life}"
        self.process = Process(cluster.loop, name)
        self.door = Door(cluster.network, self.process)
        app = cluster.app(self.door, self.clock, name)
        register(
            app, self.process, self.clock, cluster.ledger, all_names=self.number == 0 or cluster.rng.random() < 0.7
        )
        self.process.spawn(self._run(app, self.process), f"{name} main")

    async def _run(self, app: Onward, process: Process) -> None:
        picky = self.number > 0 and self.cluster.rng.random() < 0.15
        worker = app._make_worker(spawn=process.spawn, queues=["default"] if picky else [])
        try:
            await worker.start()
        except OnwardError:  # a supervisor would see that the program ended with an error
            self.cluster.watch.note(f"{process} could not start")
            process.call(self.cluster.kill, self)
            return
        if process is self.process:
            self.worker = worker

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL where it takes too long."""
        worker, process = self.worker, self.process
        if worker is None or process is None or process.dead:
            return
        stopping = process.spawn(worker.stop(self.cluster.rng.choice([0.5, 5.0])), f"{process} stop")
        await asyncio.wait({stopping}, timeout=20)
        if stopping.done() and not process.dead:
            self.cluster.seen["a worker stopped in good order"] += 1
            if stopping.exception() is None:
                self._nothing_left(process)
            for row in self.cluster.watch.queue.values():
                if row.worker in self.cluster.watch.workers_of.get(process, ()) and stopping.exception() is None:
                    self.cluster.seen["a worker could not take leave"] += 1
        if self.process is process:
            self.cluster.kill(self)

    def _nothing_left(self, process: Process) -> None:
        """A worker that has stopped must have ended all asyncio tasks that it began."""
        left = sorted({task.get_name() for task in process.tasks if not task.done()})
        if left := [name for name in left if name.startswith("onward-")]:
            self.cluster.watch.fault(f"{process} has stopped, and left behind: {', '.join(left)}")


class Cluster:
    """The whole simulation of one seed."""

    def __init__(self, seed: int, planted: Planted, *, trace: bool = False) -> None:
        self.planted = planted
        self.rng = random.Random(f"cluster {seed}")
        self.weather: Weather = forecast(self.rng)
        self.weather.waits = 0.7 if seed >= BRANCHES else CALM
        self.weather_text = str(self.weather)
        self.loop = SimLoop(random.Random(f"order {seed}"), self.weather.disorder)
        self.loop.known = (Broken,)
        self.wall = SimClock(self.loop)
        self.store = planted.store(MEMORY, clock=self.wall, inline=True)
        self.watch = Watch(self.loop, self.store, self.wall.now)
        self.watch.trace = [] if trace else None
        self.watch.fair = not self.weather.faults()
        self.seen = self.watch.seen
        self.network = Network(self.loop, self.store, self.watch, self.weather, random.Random(f"network {seed}"))
        self.network.killer = self._killed_by_the_weather
        self.watch.taken_over = self._taken_over
        self.watch.forgotten = self._wake
        self.asleep: list[Process] = []
        """Stopped processes whose machines have started others: the cluster wakes them long after."""
        self.strays: list[Process] = []
        """All processes that were ever asleep: when one dies, no machine starts it again."""
        self.ledger = Ledger(self.loop, self.watch, self.weather.lease)
        self.ledger.deadly = self._killed_by_a_step
        self.machines = [Machine(self, number) for number in range(self.weather.workers)]
        self.clients: list[Client] = []
        self.processes: list[Process] = []
        self._seed, self._crowd = seed, 0

    def app(self, door: Door, clock: SimClock, name: str) -> Onward:
        weather = self.weather
        return Onward(
            clock=clock,
            rng=random.Random(f"{name} {self._seed}"),
            store=door,  # type: ignore[arg-type]
            lease_s=weather.lease,
            heartbeat_s=weather.heartbeat,
            poll_s=weather.poll,
            slots=weather.slots,
        )

    # ── a life ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def live(self) -> None:
        drive(self.store.open())
        self.planted.parts(self)
        for machine in self.machines:
            machine.boot()
        orders = self._customers()
        storm = [self.loop.create_task(job) for job in self._storm()]
        self.loop.create_task(self._patrol())
        await asyncio.sleep(self.weather.horizon)
        for job in storm:
            job.cancel()
        self._calm()
        await self._rest(orders)
        self.watch.census()
        verdict(self)

    def _customers(self) -> list[asyncio.Task[None]]:
        orders: list[asyncio.Task[None]] = []
        for number in range(2):
            process = Process(self.loop, f"client{number}")
            clock = SimClock(self.loop, skew=self.rng.uniform(-90, 90))
            app = self.app(Door(self.network, process), clock, process.name)
            register(app, process, clock, self.ledger)
            rng = random.Random(f"{process.name} orders {self._seed}")
            client = Client(app, self.watch, rng, process.name, self.weather)
            self.clients.append(client)
            orders += [process.spawn(client.order(n)) for n in range(self.weather.orders // 2 + number)]
        return orders

    def _storm(self) -> Iterator[Any]:
        weather = self.weather
        for every, happening in (
            (weather.kill_every, self._kill_some),
            (weather.pause_every, self._pause_some),
            (weather.stop_every, self._stop_some),
            (weather.cut_every, self._cut_some),
            (weather.outage_every, self._outage),
            (weather.jump_every, self._jump),
            (weather.night_every, self._night),
        ):
            if every:
                yield self._now_and_then(every, happening)

    async def _now_and_then(self, every: float, happening: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / every))
            await happening()

    async def _patrol(self) -> None:
        while True:
            await asyncio.sleep(7)
            self.watch.census()
            if self.loop.turns > MAX_TURNS:
                self.watch.fault(
                    f"{self.loop.turns} callbacks in {self.loop.time():.0f} s: something turns without end"
                )

    def _calm(self) -> None:
        self.watch.note("the storm is over")
        self.weather.calm()
        self.network.outage_until = 0.0
        for door in self.network.doors:
            door.cut_until = 0.0
        for machine in self.machines:
            if machine.process is not None:
                machine.process.go_on()

    async def _rest(self, orders: list[asyncio.Task[None]]) -> None:
        """Waits until all tasks have ended; skips the time while only sleepers are left."""
        process = Process(self.loop, "person")
        person = Person(self.app(Door(self.network, process), self.wall, "person"), self.watch)
        for number in range(MAX_ROUNDS):
            self.rounds = number
            await asyncio.wait({process.spawn(person.look())})
            await asyncio.sleep(self.weather.lease)
            waiting = [order for order in orders if not order.done()]
            for order in orders:
                if order.done() and order.exception() is not None:
                    raise order.exception()  # type: ignore[misc]
            if not waiting and not self.watch.queue:
                self._wake(set(self.asleep))
                await asyncio.sleep(self.weather.lease * 2)
                return
            rows = self.watch.queue.values()
            if rows and all(row.worker is None and row.due_at is not None for row in rows):
                nights = min(row.due_at or 0 for row in rows) - self.wall.now() - 0.5
                if nights > 5:
                    self.loop.leap(min(nights, 1e6))
        left = {id_[-4:]: row for id_, row in self.watch.queue.items()}
        self.watch.fault(f"the storm is long over, and these are not at their end: {left}")

    # ── faults of processes, network and clocks ──────────────────────────────────────────────────────────────────

    def kill(self, machine: Machine) -> None:
        """SIGKILL; the machine starts another process after a while."""
        process = machine.process
        if process is None or process.dead:
            return
        self.watch.note(f"{process} is dead")
        process.kill()
        self.processes.append(process)
        machine.process = machine.worker = None
        self.loop.call_later(
            self.rng.choice([0.1, 2.0, 15.0]) * self.rng.random(), machine.boot, context=self.network._context
        )

    def _killed_by_the_weather(self, process: Process) -> bool:
        for machine in self.machines:
            if machine.process is process:
                self.seen["a process died in the middle of a call"] += 1
                self.kill(machine)
                return True
        if process in self.strays and not process.dead:
            self.watch.note(f"{process} is dead")
            process.kill()
        return process.dead

    def _killed_by_a_step(self, process: Process) -> None:
        self.seen["a step killed its process"] += 1
        self._killed_by_the_weather(process)

    def _some_machine(self) -> Machine:
        """A random machine, more often one whose worker holds a task."""
        holders = {row.worker for row in self.watch.queue.values() if row.worker is not None}
        busy = [m for m in self.machines if m.process and holders & set(self.watch.workers_of.get(m.process, ()))]
        return self.rng.choice(busy if busy and self.rng.random() < 0.7 else self.machines)

    async def _kill_some(self) -> None:
        self.kill(self._some_machine())

    async def _pause_some(self) -> None:
        machine = self._some_machine()
        process = machine.process
        if process is None or process.standing:
            return
        self.watch.note(f"{process} stands still")
        process.stop()
        if self.rng.random() < 0.4:
            self.asleep.append(process)
            self.strays.append(process)
            machine.process = machine.worker = None
            self.loop.call_later(self.rng.random(), machine.boot, context=self.network._context)
            return
        await asyncio.sleep(self.weather.lease * self.rng.choice([0.1, 0.9, 1.1, 2.0, 3.5]))
        self.watch.note(f"{process} goes on")
        process.go_on()

    def _wake(self, processes: set[Process]) -> None:
        """Wakes sleeping processes whose task was pruned: this is the worst moment for them to go on."""
        for process in [process for process in self.asleep if process in processes]:
            self.seen["a process woke up whose task was pruned"] += 1
            self.asleep.remove(process)
            self.loop.call_later(self.rng.random() * 2, process.go_on, context=self.network._context)

    def _taken_over(self, process: Process) -> None:
        """Another process took a task of this one. If it only stands still, this is the worst moment for it to go on."""
        self.network.taken_over(process)
        if process.standing and not process.dead and self.rng.random() < 0.3:
            self.loop.call_later(self.rng.random() * 0.2, process.go_on, context=self.network._context)

    async def _stop_some(self) -> None:
        self.loop.create_task(self._some_machine().stop())  # it goes on after the storm

    async def _cut_some(self) -> None:
        door = self._some_machine().door if self.rng.random() < 0.7 else self.rng.choice(self.network.doors)
        door.cut_until = self.loop.time() + self.weather.lease * self.rng.choice([0.2, 0.7, 1.3, 2.5])
        self.watch.note(f"{door.process} is cut off until {door.cut_until:.3f}")

    async def _outage(self) -> None:
        self.network.outage_until = self.loop.time() + self.weather.lease * self.rng.choice([0.2, 0.7, 1.3, 2.5])
        self.watch.note(f"the store is away until {self.network.outage_until:.3f}")

    async def _jump(self) -> None:
        clock = self.rng.choice([self.wall, *[machine.clock for machine in self.machines]])
        seconds = self.rng.uniform(-1, 1) * self.rng.choice([1.0, 10.0, 100.0])
        clock.jump(seconds)
        self.watch.note(f"a clock jumps by {seconds:.3f}")
        if clock is self.wall:
            self.watch.jumped_at = self.loop.time()
            self.seen["the clock of the database jumped"] += 1

    async def _night(self) -> None:
        seconds = self.rng.choice([20.0, 3600.0, 30_000.0]) * self.rng.random()
        self.watch.note(f"all machines are asleep for {seconds:.3f}")
        self.loop.leap(seconds)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def bury(self) -> None:
        """Cancels all asyncio tasks, those of dead processes included, so that no coroutine is left unfinished."""
        self.network.closed = self.ledger.closed = self.watch.closed = True
        theirs = [task for process in self._all_processes() for task in process.tasks]
        for task in asyncio.all_tasks(self.loop) - {asyncio.current_task(), *theirs}:
            task.cancel()  # the storm first, or it would stop processes again
        for process in self._all_processes():
            process.standing = False
            self.loop.give_back(process)
        for _ in range(20):
            if not (tasks := asyncio.all_tasks(self.loop) - {asyncio.current_task()}):
                return
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=3)

    def _all_processes(self) -> list[Process]:
        return list({id(door.process): door.process for door in self.network.doors}.values())
