"""Attempts to have an approved action run without a new decision, through every door. None succeeds.

A person approves the actions of an origin. Then a caller without the right to decide tries to have them done again: by forks at every
record, of forks too, with another input, by resume, by `after=`, by children and schedules. An action is allowed in a task as often as
it was approved in that very task, and no more.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
import random
import sys
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import httpx2
import pytest

from onward import Onward, tool
from onward.agent.models.scripted import ScriptedModel
from onward.engine.shift.shift import Shift
from onward.errors import CannotFork, OnwardError, StateConflict
from tests.kit import not_memory
from tests.server.conftest import serving

TIMEOUT_S = 60.0
TELLER = [
    [("pay", {"to": "Ada"})],
    [("pay", {"to": "Eve"}), ("look", {}), ("pay", {"to": "Kim"})],
    [("look", {}), ("look", {})],
    [("pay", {"to": "Lin"})],
    "done",
]


@dataclasses.dataclass
class World:
    """The actions that were done and those that people allowed, by task and action."""

    done: collections.Counter[tuple[str, str]] = dataclasses.field(default_factory=collections.Counter)
    allowed: collections.Counter[tuple[str, str]] = dataclasses.field(default_factory=collections.Counter)
    free: set[str] = dataclasses.field(default_factory=set)
    """Tasks in which a person said "always"."""

    def unasked(self) -> list[tuple[str, str]]:
        return [key for key, count in self.done.items() if key[0] not in self.free and count > self.allowed[key]]


def register(app: Onward, world: World) -> None:
    async def act(ctx: Any, action: str) -> str:
        world.done[ctx.task_id, action] += 1
        return action

    async def steps(ctx: Any, *actions: str) -> None:
        for action in actions:
            await ctx.step(act, ctx, action, name=action, effect="once" if action == "charge" else None)

    @app.task
    async def till(ctx: Any, amount: int = 1, fails: bool = False) -> int:
        """One approval for two actions, with harmless steps before, between and after."""
        await ctx.now()
        await ctx.approve("charge,mail", data={"amount": amount})
        await steps(ctx, "charge")
        await ctx.uuid()
        await steps(ctx, "mail")
        await ctx.uuid()
        if fails and ctx.attempt == 1:
            raise ValueError("no luck")
        return amount

    @app.task
    async def pair(ctx: Any) -> None:
        """Two approvals are open at once, and the allowed actions run in another order."""
        await ctx.gather(ctx.approve("charge"), ctx.approve("mail"))
        await steps(ctx, "mail")
        await ctx.now()
        await steps(ctx, "charge")

    @app.task
    async def saver(ctx: Any) -> None:
        """The approval lies behind a checkpoint."""
        if ctx.restored is None:
            await ctx.approve("charge")
            await ctx.checkpoint("approved")
        await ctx.uuid()
        await steps(ctx, "charge")

    @app.task
    async def boss(ctx: Any) -> Any:
        return await (await ctx.submit("till", {"amount": 2}))

    @tool(risk="external_action", idempotent=True)
    async def pay(ctx: Any, to: str) -> str:
        """Pay a person."""
        world.done[ctx.task_id, f"pay {to}"] += 1
        return f"{to} has it"

    @tool(risk="read")
    async def look() -> str:
        """Look around."""
        return "nothing"

    app.agent("teller", model=ScriptedModel(TELLER), tools=[pay, look], approve=["external_action"])
    app.schedule("nightly", "till", every="365d")


class Person:
    """Decides, and keeps the allowed actions."""

    def __init__(self, app: Onward, world: World, rng: random.Random) -> None:
        self._app, self._world, self._rng = app, world, rng

    async def decide(self, ask: Any, verdict: str, *, always: bool = False) -> None:
        actions = [f"pay {ask.arguments['to']}"] if ask.tool else ask.text.split(",")
        if verdict == "approve":
            self._world.allowed.update((ask.task_id, action) for action in actions)
            if always:
                self._world.free.add(ask.task_id)
        await self._app.decide(ask.id, verdict, always=always)

    async def until_rest(self, task_id: str) -> Any:
        """Waits until the task has ended, or waits for a person."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                task = await self._app.get(task_id)
                if task.ended or task.reason in {"approval", "parked"}:
                    return task
                if task.reason == "child" and await self._app.asks():
                    return task
                await asyncio.sleep(0.005)

    async def through(self, task_id: str, *, always: bool = False) -> Any:
        """Approves all its asks, until the task has ended."""
        while not (task := await self.until_rest(task_id)).ended:
            assert task.reason != "parked", await self._app.service.journal(task_id)
            for ask in await self._app.asks("approval"):
                tree = {task_id, *[item.task_id for item in (await self._app.list(parent=task_id))[0]]}
                if ask.task_id in tree:
                    with contextlib.suppress(OnwardError):
                        await self.decide(ask, "approve", always=always and ask.tool is not None)
            await asyncio.sleep(0.005)
        return task


class Attacker:
    """A caller with every right except to decide."""

    def __init__(self, app: Onward, client: httpx2.AsyncClient, tokens: list[str], rng: random.Random) -> None:
        self._app, self._client, self._tokens, self._rng = app, client, tokens, rng
        self.doors: collections.Counter[str] = collections.Counter()

    async def fork(self, origin: str) -> str | None:
        """Forks at any record, through any door; returns None where no fork is possible."""
        places = [record.seq for record in await self._app.service.forks.places(origin)]
        last = (await self._app.service.journal(origin, limit=1000))[-1].seq
        at = self._rng.choice(places) if self._rng.random() < 0.8 else self._rng.randint(1, last)
        roll = self._rng.random()
        if roll < 0.45:
            self.doors["python"] += 1
            with contextlib.suppress(CannotFork):
                return (await self._app.fork(origin, at)).id
            return None
        if roll < 0.95:
            self.doors["http"] += 1
            token = self._rng.choice(self._tokens)
            answer = await self._client.post(
                f"/api/tasks/{origin}/fork", json={"at": at}, headers={"Authorization": f"Bearer {token}"}
            )
            return str(answer.json()["task_id"]) if answer.status_code < 300 else None
        return await self._by_command(origin, at)

    async def _by_command(self, origin: str, at: int) -> str | None:
        self.doors["command"] += 1
        command = [sys.executable, "-m", "onward", "fork", origin, "--at", str(at), "--yes", "--json"]
        process = await asyncio.create_subprocess_exec(
            *command, "--db", self._app.settings.db, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        return str(json.loads(out)["task_id"]) if process.returncode == 0 else None

    async def other_input(self, origin: str) -> str | None:
        self.doors["another input"] += 1
        task = await self._app.get(origin)
        if task.task != "till":
            return None
        return (await self._app.fork(origin, input={"amount": 1000})).id

    async def resume(self, origin: str) -> str | None:
        self.doors["resume"] += 1
        with contextlib.suppress(StateConflict):
            await self._app.resume(origin)
        return origin

    async def go_on(self, origin: str) -> str | None:
        self.doors["after"] += 1
        if (await self._app.get(origin)).task != "teller":
            return None
        answer = await self._client.post(
            "/api/tasks",
            json={"task": "teller", "input": {"goal": "Go on.", "after": origin}},
            headers={"Authorization": f"Bearer {self._rng.choice(self._tokens)}"},
        )
        return str(answer.json()["task_id"]) if answer.status_code < 300 else None

    async def tick(self, origin: str) -> str | None:
        self.doors["schedule"] += 1
        return (await self._app.trigger("nightly")).id


@contextlib.asynccontextmanager
async def stage(url: str, seed: int) -> AsyncIterator[tuple[Onward, World, Person, Attacker, random.Random]]:
    app, world, rng = Onward(url), World(), random.Random(seed)
    register(app, world)
    async with app.worker(), serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        create = app.keys.create
        tokens = [
            (await create("reads and submits", ["read", "submit"])).token,
            (await create("submits", ["submit"])).token,
            (await create("the agent's", ["read", "submit", "decide"], agent="teller")).token,
        ]
        yield app, world, Person(app, world, rng), Attacker(app, client, tokens, rng), rng


async def attempts(url: str, count: int, seed: int) -> tuple[World, Attacker]:
    """Makes `count` attempts; returns the world and the attacker."""
    async with stage(url, seed) as (app, world, person, attacker, rng):
        origins: list[str] = []
        wanted = [
            ("till", {"amount": 1}),
            ("till", {"fails": True}),
            ("pair", None),
            ("saver", None),
            ("teller", "Pay."),
            ("boss", None),
        ]
        for number, (name, value) in enumerate([*wanted, ("teller", "Pay, and always.")]):
            task = await app.submit(name, value)
            await person.through(task.id, always=number == len(wanted))
            origins.append(task.id)
        origins += [child.task_id for child in (await app.list(parent=origins[5]))[0]]
        for _ in range(count):
            origin = rng.choice(origins)
            ways = [attacker.fork] * 12 + [attacker.other_input, attacker.resume, attacker.go_on, attacker.tick]
            task_id = await rng.choice(ways)(origin)
            if task_id is None:
                continue
            task = await person.until_rest(task_id)
            if world.unasked():
                break
            if rng.random() < 0.3:
                task = await person.through(task_id, always=rng.random() < 0.3)
                if task_id not in origins:
                    origins.append(task_id)  # forks of forks
            elif not task.ended and rng.random() < 0.5:
                for ask in [open_ask for open_ask in await app.asks("approval") if open_ask.task_id == task_id][:1]:
                    await person.decide(ask, "deny")
                await person.until_rest(task_id)
        return world, attacker


@not_memory
@pytest.mark.slow
async def test_no_approved_action_runs_without_a_new_decision(url: str, prove: bool) -> None:
    world, attacker = await attempts(url, 200 if prove else 40, seed=15)
    assert world.unasked() == []
    assert attacker.doors["python"]
    assert attacker.doors["http"]


@pytest.mark.parametrize("kind", ["sqlite file"], indirect=True)
@pytest.mark.parametrize("fault", ["handlers", "agents"])
async def test_the_attempts_catch_a_fork_that_inherits_decisions(url: str, fault: str) -> None:
    """The planted fault: a fork takes the decisions of its origin for its own."""
    planted = (
        mock.patch.object(Shift, "_call_when_approved", lambda self: self._call_handler())
        if fault == "handlers"
        else mock.patch.object(Shift, "inherits", return_value=False)
    )
    with planted:
        world, _ = await attempts(url, 200, seed=15)
    assert world.unasked()
