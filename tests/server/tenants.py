"""Two tenants and a caller without a tenant, each with a task in every state that a verb needs; and all rows of all tables."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from onward import Budget, Onward, tool
from onward.agent.models.scripted import ScriptedModel
from onward.core import event
from onward.core.caller import ADMIN, DECIDE, READ, SCOPES, SUBMIT, Caller
from onward.core.clock import SystemClock
from onward.core.identity import Identity
from onward.core.lock import LockRequest
from onward.core.state import AgentState, StatePatch
from onward.server.access.service import AuthorizedService
from onward.service.submission import SubmitRequest
from onward.sinks.webhook import Webhooks
from onward.store.port.outbox import SubscriptionRow
from onward.store.shared.intakes import IntakeReport, NewLetter
from onward.store.sqlite.store import SqliteStore
from tests.kit import eventually, sql

ALL = frozenset(SCOPES)
WORK = frozenset({READ, SUBMIT, DECIDE})


@dataclasses.dataclass
class TenantResources:
    """The ids of the resources of one tenant."""

    asker: str
    """Has a question open and an artifact; the parent of the next two."""
    fixer: str
    """A task of the agent `fixer`, with a state, a budget, and a call that waits for a yes."""
    doubter: str
    """With an effect in doubt."""
    done: str
    """A task of an agent that has ended."""
    approval: str
    question: str
    artifact: str
    key: str
    """The id of a key."""
    subscription: str
    delivery: str
    session: str
    """The id of a session of a person."""
    lock: str
    """The name of a lock that a program of the tenant holds."""
    intake: str
    letter: str
    """A dead letter of that intake."""

    @property
    def names(self) -> set[str]:
        return {value for value in dataclasses.astuple(self) if value}


GHOST = TenantResources(
    asker="06g0000000000000000000000a",
    fixer="06g0000000000000000000000b",
    doubter="06g0000000000000000000000c",
    done="06g0000000000000000000000d",
    approval="06g0000000000000000000000b.9",
    question="06g0000000000000000000000a.9",
    artifact="0" * 64,
    key="000000000000",
    subscription="06g0000000000000000000000e",
    delivery="06g0000000000000000000000d.9.06g0000000000000000000000e",
    session="000000000001",
    lock="a lock of nobody",
    intake="mail-of-nobody",
    letter="06g0000000000000000000000f",
)
"""What nobody has."""


def declare(app: Onward) -> None:
    """The handlers."""

    @tool(risk="external_action", idempotent=True)
    async def wipe(disk: str) -> str:
        """Wipe a disk."""
        return f"{disk} is empty"

    fixer = ScriptedModel([[("wipe", {"disk": "/dev/sda"})], "done"])
    app.agent("fixer", model=fixer, tools=[wipe], approve=["external_action"], budget=Budget(max_llm_tokens=1_000_000))
    app.agent("quick", model=ScriptedModel(["done", "done again"]), retry=1)

    @app.task(retry=1)
    async def doubter(ctx: Any) -> Any:
        async def charge() -> None:
            await asyncio.Event().wait()

        return await ctx.step(charge, effect="once", timeout=0.01, retry=1)

    @app.task
    async def asker(ctx: Any) -> Any:
        await ctx.patch(AgentState(goal="ask"))
        await ctx.patch(StatePatch())
        await ctx.artifact("what only its tenant may read")
        children = [await ctx.submit("fixer", {"goal": "fix it"}), await ctx.submit("doubter")]
        answer = await ctx.ask("how?")
        return [answer, *[child.id for child in children]]

    @app.task
    async def tick(ctx: Any) -> None: ...

    app.schedule("nightly", tick, cron="0 3 * * *")


def caller(tenant: str | None, scopes: frozenset[str] = ALL, **more: Any) -> Caller:
    return Caller(tenant, scopes, f"key-of-{tenant}", f"somebody of {tenant}", **more)


async def subscribed(app: Onward, subscription: str, tenant: str | None) -> None:
    """A subscription of this tenant, also where it was removed."""
    kinds = event.kinds(["task.completed"])
    row = SubscriptionRow(
        subscription, None, tenant or "", "task.completed", kinds, "https://192.0.2.1/", "url:https://192.0.2.1:443"
    )
    await app.store.outbox.subscribe(row)


async def restore(app: Onward, resources: TenantResources) -> None:
    """Restores the subscription, the session and the delivery that a faulty verb removed or sent."""
    await subscribed(app, resources.subscription, "acme")
    resources.session = await session_of(app, "acme")
    await locked(app, "acme")
    await buried(app, resources.letter, "acme")
    task_id, seq, _ = resources.delivery.split(".")
    await sql(
        app.store,
        "INSERT INTO onward_outbox (task_id, seq, subscription, kind, lane, at, due_at) "
        f"VALUES ('{task_id}', {seq}, '{resources.subscription}', 'task.completed', 'url:x', 0, 0) ON CONFLICT DO NOTHING",
    )


async def locked(app: Onward, tenant: str | None) -> str:
    """The name of a lock that a program of this tenant holds for a day."""
    name = f"the lock of {tenant}"
    await app.store.locks.take(
        LockRequest(tenant or "", name, f"owner of {tenant}", f"a program of {tenant}", ttl_s=86_400.0)
    )
    return name


async def buried(app: Onward, letter_id: str, tenant: str | None) -> str:
    """A dead letter of this tenant, and a report about its intake; the name of the intake."""
    intake = f"mail-of-{tenant}"
    letter = NewLetter(letter_id, intake, "id:1", tenant, f"no task for {tenant}", "1-0", "", 2, {"a": "b"}, b"{}")
    await app.store.intakes.bury([letter])
    await app.store.intakes.report(
        IntakeReport(intake, "host:1", "shop/mail", "quick", tenant, "running", "", 1, 1, 0.5, 3)
    )
    return intake


async def session_of(app: Onward, tenant: str | None) -> str:
    """The id of a new session of a person of this tenant."""
    person = Identity(f"a person of {tenant}", "somebody", frozenset({"viewer"}), tenant)
    return (await app.service.sessions.begin(person, idle_s=86_400, max_s=86_400)).session.id


async def make_resources(app: Onward, tenant: str | None) -> TenantResources:
    """Submits the tasks of a tenant, and waits until they have ended or wait for a person. Needs a worker."""
    door = AuthorizedService(app.service, caller(tenant, ALL if tenant else WORK))
    await app.store.outbox.watch(busy=False)
    subscription = app._ids()
    await subscribed(app, subscription, tenant)
    asker, done = await door.submit(
        [SubmitRequest("asker", key="the-same"), SubmitRequest("quick", {"goal": "be quick"})]
    )

    async def asks() -> dict[str, Any]:
        """The open approvals and questions by task, as soon as every task has ended or waits."""
        tasks, _ = await door.list()
        at_rest = {"question", "approval", "in_doubt"} <= {task.reason for task in tasks} and (
            await app.get(done)
        ).ended
        return {ask.task_id: ask for ask in await app.asks()} if at_rest else {}

    open_ = await eventually(asks, 60)
    tasks, _ = await door.list()
    child = {task.task: task.task_id for task in tasks if task.parent == asker}
    (artifact,) = await app.artifacts(asker)
    ((delivery,), _) = await app.deliveries(task=done)
    key = (await app.keys.create(f"of {tenant}", ["read"], tenant=tenant)).key.id
    session = await session_of(app, tenant)
    letter = app._ids()
    intake = await buried(app, letter, tenant)
    return TenantResources(
        asker=asker,
        fixer=child["fixer"],
        doubter=child["doubter"],
        done=done,
        approval=open_[child["fixer"]].id,
        question=open_[asker].id,
        artifact=artifact.artifact_id,
        key=key,
        subscription=subscription,
        delivery=delivery.id,
        session=session,
        lock=await locked(app, tenant),
        intake=intake,
        letter=letter,
    )


async def make_tenants(app: Onward) -> dict[str | None, TenantResources]:
    """The resources of all tenants. No worker runs afterwards."""
    declare(app)
    app.webhooks = Webhooks("whsec_" + "MDEy" * 10, "", SystemClock())
    async with app.worker():
        return {tenant: await make_resources(app, tenant) for tenant in ("acme", "globex", None)}


async def all_rows(app: Onward) -> dict[str, list[str]]:
    """All rows of all tables. When a key or a session was last used is not of interest."""
    inside = isinstance(app.store, SqliteStore)
    tables = await sql(
        app.store,
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'onward%'"
        if inside
        else "SELECT tablename FROM pg_tables WHERE tablename LIKE 'onward%'",
    )
    rows = {}
    for (table,) in sorted(tables):
        columns = {"onward_keys": "id, revoked_at", "onward_sessions": "id"}.get(table, "*")
        rows[table] = sorted(repr(row) for row in await sql(app.store, f"SELECT {columns} FROM {table}"))
    return rows


__all__ = [
    "ADMIN",
    "ALL",
    "DECIDE",
    "GHOST",
    "READ",
    "SUBMIT",
    "WORK",
    "TenantResources",
    "all_rows",
    "caller",
    "make_tenants",
    "restore",
]
