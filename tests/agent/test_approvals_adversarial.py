"""A thousand decisions by people who are late, disagree, mix up ids or invent them: only approved calls run.

The oracle is outside: tools write their calls into a ledger, and deciders keep the replies to their decisions. Each call in
the ledger must belong to exactly one approval that was accepted for exactly these arguments.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import psycopg
import pytest

from onward import Onward, tool
from onward.agent import calls
from onward.agent.calls import AllowedCall, Calls, CheckedCall
from onward.agent.models.scripted import ScriptedModel
from onward.core import record as r
from onward.core import wire
from onward.core.views import Ask
from onward.engine.context.context import Context
from onward.errors import AlreadyDecided, Denied, OnwardError
from onward.service.messages import Messages
from tests.kit import eventually, not_memory, only_file

HOUR = 3600.0
TURNS = 2

GARBAGE = [
    "", ".", "x", "nobody.3", "\x00.3", "١.٣", "{id}", "{id}.0", "{id}.1", "{id}.-1", "{id}.3 ", "{id}.\ud800", " {id}.3",
    "{id}.99999999999999999999", "'; DROP TABLE onward_tasks; --.1", "{id}.1e1", "../{id}.3", "é" * 5000,
]  # fmt: skip

Ledger = list[tuple[str, str]]
"""The task and the arguments of each transfer that happened."""


def plainly(arguments: Any) -> str:
    return json.dumps(arguments, sort_keys=True)


class ShiftedClock:
    """The time of this machine, moved ahead; on PostgreSQL the clock of the server moves as well."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.on_move: Callable[[float], object] = lambda ahead: None

    def now(self) -> float:
        return time.time() + self.ahead

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(delay)

    def move(self, seconds: float) -> None:
        self.ahead += seconds
        self.on_move(self.ahead)


class World:
    """Workers, doors, a ledger, and the replies that each decider got."""

    def __init__(self, seed: int, clock: ShiftedClock) -> None:
        self.rng, self.clock = random.Random(seed), clock
        self.ledger: Ledger = []
        self.count: collections.Counter[str] = collections.Counter()
        """Decisions, by kind."""
        self.refused: collections.Counter[str] = collections.Counter()
        self.accepted: dict[str, list[str]] = collections.defaultdict(list)
        self.owed: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        """The calls that must have run, by task."""
        self.stopped: set[str] = set()
        """Cancelled tasks: some of their owed calls may be missing."""
        self.seen: dict[str, Ask] = {}
        self.wrong: list[str] = []
        self.gates: dict[str, asyncio.Event] = collections.defaultdict(asyncio.Event)
        self.doors: list[Onward] = []
        self.numbers = iter(range(1_000_000))

    def hostile(self) -> int:
        """The number of decisions, without plain ones."""
        return self.count.total() - self.count["approve"] - self.count["deny"]

    # ── agents and tools ─────────────────────────────────────────────────────────────────────────────────────────

    def offer(self, app: Onward) -> Onward:
        @tool(risk="external_action")
        async def transfer(ctx: Context, to: str, cents: int) -> str:
            """Send money."""
            self.ledger.append((ctx.task_id, plainly({"to": to, "cents": cents})))
            return "sent"

        async def book(name: str) -> str:
            return name

        async def unbook(name: str) -> None:
            await self.gates[name].wait()

        async def send(task_id: str) -> None:
            self.ledger.append((task_id, "trip"))

        @app.task
        async def trip(ctx: Context, name: str) -> None:
            async with ctx.saga():
                await ctx.step(book, name, undo=unbook)
                await ctx.approve(f"send money to {name}?")
                await ctx.step(send, ctx.task_id)

        def turn(request: Any) -> Any:
            plan = json.loads(request.conversation[1]["content"])
            number = sum(message["role"] == "assistant" for message in request.conversation)
            return [(name, arguments) for name, arguments in plan[number]] if number < len(plan) else "done"

        model = ScriptedModel([turn] * (TURNS + 2))
        for name, options in {
            "patient": {},
            "hasty": {"approval_timeout": HOUR},
            "generous": {"approval_timeout": HOUR, "approval_default": "approve"},
        }.items():
            app.agent(name, model=model, tools=[transfer], approve=["external_action"], **options)  # type: ignore[arg-type]
        return app

    # ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────

    async def attempt(
        self, kind: str, ask: Ask | str, decision: str, *, door: Onward | None = None, fits: bool = True, **given: Any
    ) -> bool:
        """Sends one decision; returns whether it was accepted. A refusal must be an OnwardError."""
        self.count[kind] += 1
        ask_id = ask if isinstance(ask, str) else ask.id
        try:
            await (door or self.rng.choice(self.doors)).decide(ask_id, decision, by=kind, **given)
        except OnwardError as error:
            self.refused[type(error).__name__] += 1
            return False
        self.accepted[ask_id].append(decision)
        if decision == "approve" and fits and isinstance(ask, Ask):
            self.owe(ask.task_id, given.get("arguments") or ask.arguments or "trip")
        return True

    def owe(self, task_id: str, call: Any) -> None:
        self.owed[task_id][call if call == "trip" else plainly(call)] += 1

    def must(self, holds: bool, fault: str) -> None:
        if not holds:
            self.wrong.append(fault)

    async def open(self, task_id: str, count: int) -> list[Ask]:
        """The open approvals of a task, once there are `count`."""

        async def look() -> list[Ask]:
            asks = [ask for ask in await self.doors[0].asks("approval") if ask.task_id == task_id]
            return asks if len(asks) >= count else []

        asks: list[Ask] = await eventually(look, 60)
        self.seen |= {ask.id: ask for ask in asks}
        return asks

    def plan(self) -> list[list[tuple[str, dict[str, Any]]]]:
        """The script of a model: two calls that are the same and one that is not; then the first once more."""
        name, cents = f"n{next(self.numbers)}", self.rng.randrange(1, 100)
        same = ("transfer", {"to": name, "cents": cents})
        return [[same, same, ("transfer", {"to": f"{name}'", "cents": cents})], [same]]

    async def submit(self, agent: str, plan: Any) -> str:
        return (await self.doors[0].submit(agent, json.dumps(plan))).id

    # ── the plots ────────────────────────────────────────────────────────────────────────────────────────────────

    async def quarrel(self, kind: str) -> str:
        """Runs a task: the plot decides its first turn, and a random choice its last call."""
        plan = self.plan()
        if kind == "question":
            plan[0].append(("ask_user", {"question": "Really?"}))
        task_id = await self.submit("patient", plan)
        asks = await self.open(task_id, 3)
        self.rng.shuffle(asks)
        await getattr(self, kind.replace(" ", "_"))(kind, asks)
        if kind != "always":
            (last,) = await self.open(task_id, 1)
            await self.attempt(*self.rng.choice([("approve", last, "approve"), ("deny", last, "deny")]))
        return task_id

    async def rest(self, asks: list[Ask]) -> None:
        for ask in asks:
            self.must(await self.attempt("deny", ask, "deny", reason="no"), f"{ask.id} could not be denied")

    async def approve(self, kind: str, asks: list[Ask]) -> None:
        self.must(await self.attempt(kind, asks[0], "approve", hash=asks[0].hash), "a plain yes was refused")
        await self.rest(asks[1:])

    async def twice(self, kind: str, asks: list[Ask]) -> None:
        first, second = self.rng.choice([("approve", "deny"), ("deny", "approve"), ("approve", "approve")])
        self.must(await self.attempt(kind, asks[0], first), "the first was refused")
        self.must(not await self.attempt(kind, asks[0], second), "the second was accepted")
        await self.rest(asks[1:])

    async def raced(self, kind: str, asks: list[Ask]) -> None:
        other = {"to": f"{asks[0].task_id}?", "cents": 7}
        say = [("approve", {}), ("deny", {}), ("approve", {"arguments": other}), ("deny", {"reason": "no"})]
        self.rng.shuffle(say)
        doors = [self.doors[n % len(self.doors)] for n in range(len(say))]
        accepted = await asyncio.gather(
            *[
                self.attempt(kind, asks[0], decision, door=door, **more)
                for (decision, more), door in zip(say, doors, strict=True)
            ]
        )
        self.must(sum(accepted) == 1, f"{sum(accepted)} of a race were accepted")
        await self.rest(asks[1:])

    async def changed(self, kind: str, asks: list[Ask]) -> None:
        other = {"to": "somebody else", "cents": self.rng.randrange(100, 1000)}
        self.must(await self.attempt(kind, asks[0], "approve", arguments=other), "a change was refused")
        await self.rest(asks[1:])

    async def unfit(self, kind: str, asks: list[Ask]) -> None:
        """Arguments that the tool does not take: an app that knows the tool refuses them, and they never run."""
        wrong = self.rng.choice([{}, {"to": 1}, {"to": "x", "cents": "many"}, {"to": "x", "cents": 1, "more": 1}])
        self.must(not await self.attempt(kind, asks[0], "approve", door=self.doors[0], arguments=wrong), "it fits?")
        none = self.rng.choice(["text", [], 1, {"to": float("nan")}, {"to": "\ud800"}, {"to": {1}}])
        self.must(not await self.attempt(kind, asks[0], "approve", arguments=none), f"{none!r} is no JSON object")
        accepted = await self.attempt(kind, asks[0], "approve", door=self.doors[-1], fits=False, arguments=wrong)
        self.must(accepted, "how should it know?")
        await self.rest(asks[1:])

    async def stale(self, kind: str, asks: list[Ask]) -> None:
        """An old page, or that of another call or task."""
        for seen in (asks[1].hash, "0" * 24, self.rng.choice(list(self.seen.values())).hash):
            if seen != asks[0].hash:
                self.must(not await self.attempt(kind, asks[0], "approve", hash=seen), "it was for another hash")
        self.must(await self.attempt("approve", asks[0], "approve", hash=asks[0].hash), "the right hash was refused")
        await self.rest(asks[1:])

    async def sibling(self, kind: str, asks: list[Ask]) -> None:
        """A yes to one of two calls with the same arguments."""
        first, second = [ask for ask in asks if not str(ask.data["arguments"]["to"]).endswith("'")]
        self.must(await self.attempt(kind, first, "approve", hash=first.hash), "a plain yes was refused")
        self.must(not await self.attempt(kind, second, "approve", hash=first.hash), "the yes was for the other")
        await self.rest([ask for ask in asks if ask.id != first.id])

    async def garbage(self, kind: str, asks: list[Ask]) -> None:
        for text in self.rng.sample(GARBAGE, 4):
            self.must(
                not await self.attempt(kind, text.replace("{id}", asks[0].task_id), "approve"), f"what is {text!r}?"
            )
        decision = self.rng.choice(["", "yes", "APPROVE", "approve ", "perhaps"])
        self.must(not await self.attempt(kind, asks[0], decision), f"what is {decision!r}?")
        self.must(not await self.attempt(kind, asks[0], "deny", always=True), "no, always?")
        await self.rest(asks)

    async def question(self, kind: str, asks: list[Ask]) -> None:
        self.must(await self.attempt("approve", asks[0], "approve"), "a plain yes was refused")
        await self.rest(asks[1:])

        async def look() -> list[Ask]:
            return [ask for ask in await self.doors[0].asks("question") if ask.task_id == asks[0].task_id]

        (question,) = await eventually(look, 60)
        for decision in ("approve", "deny"):
            self.must(not await self.attempt(kind, question.id, decision), "a question is no approval")
        await self.doors[0].answer(question.id, "approve")

    async def always(self, kind: str, asks: list[Ask]) -> None:
        """Denies one call; then an `always` for another approves all open calls of this tool in this task."""
        await self.rest(asks[:1])
        self.must(await self.attempt(kind, asks[1], "approve", always=True), "always was refused")
        self.owe(asks[2].task_id, asks[2].arguments)
        self.owe(
            asks[2].task_id, next(ask.arguments for ask in asks if not str(ask.data["arguments"]["to"]).endswith("'"))
        )
        await eventually(lambda: self.ended(asks[2].task_id), 60)
        self.must(not await self.attempt("ended", asks[2], "deny"), "it was decided, and is over")

    async def cancelled(self, kind: str) -> str:
        task_id = await self.submit("patient", self.plan())
        asks = await self.open(task_id, 3)
        self.stopped.add(task_id)
        await self.doors[1].cancel(task_id)
        for ask in asks:
            self.must(not await self.attempt(kind, ask, "approve"), "its task is cancelled")
        return task_id

    async def cancel_raced(self, kind: str) -> str:
        task_id = await self.submit("patient", self.plan())
        asks = await self.open(task_id, 3)
        self.stopped.add(task_id)
        say = [self.attempt(kind, ask, "approve") for ask in asks] + [self.cancel(task_id)]
        self.rng.shuffle(say)
        await asyncio.gather(*say)
        with contextlib.suppress(OnwardError):
            await self.doors[0].cancel(task_id)
        return task_id

    async def cancel(self, task_id: str) -> bool:
        await self.doors[-1].cancel(task_id)
        return True

    async def withdrawn(self, kind: str) -> str:
        name = f"trip {next(self.numbers)}"
        task_id = (await self.doors[0].submit("trip", name)).id
        (ask,) = await self.open(task_id, 1)
        self.stopped.add(task_id)
        await self.doors[0].cancel(task_id)
        self.must(not await self.attempt(kind, ask, "approve"), "its saga is being undone")
        self.gates[name].set()
        return task_id

    async def too_late(self, kind: str, task_id: str, asks: list[Ask]) -> str:
        for ask in asks:
            self.must(not await self.attempt(kind, ask, self.rng.choice(["approve", "deny"])), "its time was up")
            if kind == "default":
                self.owe(task_id, ask.arguments)
        return task_id

    async def ended(self, task_id: str) -> bool:
        """Waits for the end of a task; a task that parks has come to a wrong end."""
        task = await self.doors[0].get(task_id)
        if task.reason == "parked":
            self.wrong.append(f"{task_id} is parked")
        return task.ended or task.reason == "parked"

    # ── rounds ───────────────────────────────────────────────────────────────────────────────────────────────────

    QUARRELS = ("approve", "twice", "raced", "changed", "unfit", "stale", "sibling", "garbage", "question", "always")

    async def round(self) -> list[str]:
        """One task for every plot, all at once; then the clock moves past the timeouts."""
        once = [("transfer", {"to": f"n{next(self.numbers)}", "cents": 1})]
        timed = {
            kind: await self.submit(agent, [once]) for kind, agent in (("expired", "hasty"), ("default", "generous"))
        }
        stories: list[Coroutine[Any, Any, str]] = [self.quarrel(kind) for kind in self.QUARRELS]
        stories += [self.cancelled("cancelled"), self.cancel_raced("cancel raced"), self.withdrawn("withdrawn")]
        self.rng.shuffle(stories)
        running = asyncio.gather(*stories)
        opened = [(kind, task_id, await self.open(task_id, 1)) for kind, task_id in timed.items()]
        self.clock.move(HOUR + 1)
        ids = [*await asyncio.gather(*[self.too_late(*late) for late in opened]), *await running]
        for task_id in ids:
            await eventually(lambda task_id=task_id: self.ended(task_id), 60)  # type: ignore[misc]
        old = self.rng.choice(list(self.seen.values()))
        self.must(not await self.attempt("ended", old, "approve"), "its task is over")
        return ids

    # ── the oracle ───────────────────────────────────────────────────────────────────────────────────────────────

    async def judge(self, ids: list[str]) -> list[str]:
        """A sentence for each fault."""
        wrong = list(self.wrong)
        did: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for task_id, call in self.ledger:
            did[task_id][call] += 1
        wrong += [f"of task {id_}, which is unknown, {did[id_]}" for id_ in did.keys() - set(ids)]
        for id_ in ids:
            wrong += [f"{id_} did {call} {n} times too often" for call, n in (did[id_] - self.owed[id_]).items()]
            if id_ not in self.stopped:
                wrong += [f"{id_} did not do {call}, though allowed" for call in self.owed[id_] - did[id_]]
            wrong += await self.audit(id_)
        wrong += [
            f"{ask_id} was decided by {decisions}" for ask_id, decisions in self.accepted.items() if len(decisions) > 1
        ]
        return wrong

    async def audit(self, task_id: str) -> list[str]:
        """Checks the journal: each call has an approval of its own, for these arguments and this hash."""
        door, wrong = self.doors[0], []
        records = await door.service.journal(task_id, limit=1000)
        approvals = {record.seq: record.value for record in records if record.kind == r.APPROVAL}
        yes: collections.Counter[str] = collections.Counter()
        always = False
        for message in [
            record.value for record in records if record.kind == r.MESSAGE and record.value["ref"] in approvals
        ]:
            ask = await door.service.asks.get(f"{task_id}.{message['ref']}")
            decision = message["value"] or {"decision": ask.default, "hash": ask.hash}  # or the timeout decided
            always = always or decision.get("always", False)
            if decision["hash"] != ask.hash:
                wrong.append(f"{ask.id} was decided for {decision['hash']}")
            if decision["decision"] == "approve":
                yes[wire.fingerprint([[decision.get("arguments", ask.arguments)], {}])] += 1
        did = collections.Counter(
            record.value["args"]
            for record in records
            if record.kind == r.STEP_DONE and record.key.startswith("transfer")
        )
        return wrong + [f"{task_id} called {mark} without a yes in its journal" for mark in did - yes if not always]


@contextlib.asynccontextmanager
async def world(url: str, seed: int) -> AsyncIterator[World]:
    """Two workers and an app without agents, on one database."""
    clock = ShiftedClock()
    made = World(seed, clock)
    # A lease that outlives every move of the clock: this is about decisions, not about workers.
    settings: dict[str, Any] = {"clock": clock, "poll_s": 0.1, "heartbeat_s": 0.2, "lease_s": 1e9, "grace_s": 5.0}
    workers = [made.offer(Onward(url, **settings)) for _ in range(2)]
    made.doors = [*workers, Onward(url, **settings)]
    async with contextlib.AsyncExitStack() as stack:
        for app in made.doors:
            await stack.enter_async_context(app)
        if url.startswith("postgresql"):
            server = stack.enter_context(psycopg.connect(url, autocommit=True))
            server.execute(
                "CREATE TABLE ahead (t float8); CREATE OR REPLACE FUNCTION onward_now() RETURNS float8 LANGUAGE sql STABLE AS "
                "'SELECT extract(epoch FROM now())::float8 + COALESCE((SELECT max(t) FROM ahead), 0)'"
            )
            clock.on_move = lambda ahead: server.execute("INSERT INTO ahead VALUES (%s)", (ahead,))
        for app in workers:
            await stack.enter_async_context(app.worker(slots=20))
        yield made


EXPECTED = {*World.QUARRELS, "deny", "cancelled", "cancel raced", "withdrawn", "expired", "default", "ended"}


async def decide(url: str, decisions: int, seed: int = 4) -> tuple[World, list[str]]:
    """Runs rounds until there were `count` decisions, without plain ones; returns the faults."""
    async with world(url, seed) as made:
        ids: list[str] = []
        while made.hostile() < decisions:
            ids += await made.round()
        wrong = await made.judge(ids)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(made.count.items()))
    refusals = ", ".join(f"{count} {name}" for name, count in sorted(made.refused.items()))
    print(
        f"\n{made.hostile()} adversarial decisions of {made.count.total()} on {len(ids)} tasks ({kinds}); refused: {refusals}; "
        f"{len(made.ledger)} executions, {len(wrong)} wrong"
    )
    assert set(made.count) == EXPECTED, "VOID: not every kind of decision occurred"
    return made, wrong


@pytest.mark.slow
@not_memory
async def test_decisions_of_every_kind(fresh_url: str) -> None:
    made, wrong = await decide(fresh_url, 60)
    assert wrong == []
    assert made.ledger


@pytest.mark.slow
@not_memory
async def test_hundreds_of_decisions(fresh_url: str, prove: bool) -> None:
    made, wrong = await decide(fresh_url, 2000 if prove else 300, seed=11)
    assert wrong == []
    assert len(made.ledger) > 100


# ── the oracle finds planted faults ──────────────────────────────────────────────────────────────────────────────────


def _a_no_is_a_yes(patch: pytest.MonkeyPatch) -> None:
    real = calls.ask_approval

    async def approve(ctx: Context, what: str, **options: Any) -> dict[str, Any]:
        try:
            return await real(ctx, what, **options)
        except Denied:
            return {"decision": "approve"}

    patch.setattr(calls, "ask_approval", approve)


def _changes_are_ignored(patch: pytest.MonkeyPatch) -> None:
    def ignore(checked: CheckedCall, _: Any) -> AllowedCall:
        return AllowedCall(checked.call, checked.tool, checked.arguments)

    patch.setattr(calls, "_with_changes", ignore)


def _a_yes_is_for_all_with_the_same_arguments(patch: pytest.MonkeyPatch) -> None:
    real, approved = Calls._ask_approval, dict[str, Any]()

    async def ask_approval(self: Calls, checked: CheckedCall) -> Any:
        allowed = await real(self, checked)
        call = f"{self._ctx.task_id} {plainly(checked.arguments)}"
        if isinstance(allowed, AllowedCall):
            approved[call] = allowed
        return approved.get(call, allowed)

    patch.setattr(Calls, "_ask_approval", ask_approval)


def _every_decision_is_accepted(patch: pytest.MonkeyPatch) -> None:
    real = Messages._reply

    async def reply(self: Messages, *args: Any) -> None:
        with contextlib.suppress(AlreadyDecided):
            await real(self, *args)

    patch.setattr(Messages, "_reply", reply)


def _each_call_runs_twice(patch: pytest.MonkeyPatch) -> None:
    real = Calls._run_step

    async def run_step(self: Calls, allowed: AllowedCall) -> dict[str, Any]:
        await real(self, allowed)
        return await real(self, allowed)

    patch.setattr(Calls, "_run_step", run_step)


def _any_hash_will_do(patch: pytest.MonkeyPatch) -> None:
    real = Onward.decide

    async def decide(self: Onward, approval_id: str, decision: str, **options: Any) -> None:
        await real(self, approval_id, decision, **{**options, "hash": None})

    patch.setattr(Onward, "decide", decide)


FAULTS = (
    (_a_no_is_a_yes, "times too often"),
    (_changes_are_ignored, "times too often"),
    (_a_yes_is_for_all_with_the_same_arguments, "times too often"),
    (_every_decision_is_accepted, "were accepted"),
    (_each_call_runs_twice, "times too often"),
    (_any_hash_will_do, "it was for another hash"),
)


@only_file
@pytest.mark.slow
@pytest.mark.parametrize(("fault", "seen"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
async def test_a_planted_fault_is_found(
    fresh_url: str, fault: Callable[[pytest.MonkeyPatch], None], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    _, wrong = await decide(fresh_url, 30)
    assert any(seen in sentence for sentence in wrong), wrong
