"""`AuthorizedService`: every verb for every caller without the permission. A tenant sees nothing of another tenant, and a refused
call changes nothing.

The table of verbs is complete, or the first test fails: a new verb of `AuthorizedService` needs a row.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import operator
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onward import Limit, Onward
from onward.core import wire
from onward.core.caller import ANYBODY, SCOPES, Caller
from onward.errors import Forbidden, KeyConflict, NotForTenants, NotFound, OnwardError, OwnCall, TaskNotFound
from onward.server.access.service import AuthorizedService
from onward.service.submission import SubmitRequest
from tests.kit import Through, eventually, only_memory, only_postgres, sql
from tests.server.tenants import (
    ADMIN,
    ALL,
    DECIDE,
    GHOST,
    READ,
    SUBMIT,
    WORK,
    TenantResources,
    all_rows,
    caller,
    make_tenants,
    restore,
)


@dataclasses.dataclass(frozen=True)
class Verb:
    """The scope that a verb needs, and an example call on the resources of a tenant."""

    scope: str
    use: Callable[[AuthorizedService, TenantResources], Awaitable[Any]]
    lists: bool = False
    """Whether it shows what the caller has, which for a stranger is something else."""
    decides: bool = False
    """Whether an agent's own key is no good for it."""
    place: bool = False
    """Whether it is for callers without a tenant."""
    open: bool = False
    """Whether it shows the same to all tenants."""
    counts: bool = False
    """Whether its answer is a number, which for a stranger is that of nothing."""


async def _tail(door: AuthorizedService, of: TenantResources) -> Any:
    async for record in await door.tail(of.done):
        return record
    raise AssertionError("a journal without a record")


async def _taken(door: AuthorizedService, of: TenantResources) -> Any:
    """The task that was submitted with the key of acme, for any caller."""
    key = "key-of-nobody" if of is GHOST else "key-of-acme"
    return [row for row in (await door.usage("key")).rows if row.group == key]


VERBS: dict[str, Verb] = {
    "get": Verb(READ, lambda d, of: d.get(of.fixer)),
    "list": Verb(READ, lambda d, _: d.list(), lists=True),
    "list_explained": Verb(READ, lambda d, _: d.list_explained(), lists=True),
    "wait": Verb(READ, lambda d, of: d.wait(of.done, 0)),
    "journal": Verb(READ, lambda d, of: d.journal(of.fixer)),
    "tail": Verb(READ, _tail),
    "state": Verb(READ, lambda d, of: d.state(of.fixer)),
    "artifacts": Verb(READ, lambda d, of: d.artifacts(of.asker)),
    "artifact": Verb(READ, lambda d, of: d.artifact(of.asker, of.artifact)),
    "budget": Verb(READ, lambda d, of: d.budget(of.fixer)),
    "asks": Verb(READ, lambda d, _: d.asks(), lists=True),
    "asks_of": Verb(READ, lambda d, of: d.asks_of(of.fixer)),
    "asks_of_one": Verb(READ, lambda d, of: d.asks_of_one(of.fixer, "approval")),
    "ask": Verb(READ, lambda d, of: d.ask(of.approval)),
    "asked_in": Verb(READ, lambda d, of: d.asked_in(of.approval)),
    "doubts": Verb(READ, lambda d, of: d.doubts(of.doubter)),
    "schedules": Verb(READ, lambda d, _: d.schedules(), lists=True),
    "handlers": Verb(READ, lambda d, _: d.handlers(), lists=True, open=True),
    "timeline": Verb(READ, lambda d, of: d.timeline(of.fixer)),
    "record": Verb(READ, lambda d, of: d.record(of.fixer, 1)),
    "turns": Verb(READ, lambda d, of: d.turns(of.fixer)),
    "turn": Verb(READ, lambda d, of: d.turn(of.fixer, 1)),
    "count": Verb(READ, lambda d, of: d.count(parent=of.asker), counts=True),
    "act": Verb(SUBMIT, lambda d, of: d.act("priority", 5, priority=-3, parent=of.asker), counts=True),
    "submit": Verb(SUBMIT, lambda d, of: d.submit([SubmitRequest("quick", {"goal": "on"})], after=of.done)),
    "children": Verb(READ, lambda d, of: d.children(of.asker)),
    "fork_plan": Verb(SUBMIT, lambda d, of: d.fork_plan(of.asker, 1)),
    "fork_places": Verb(READ, lambda d, of: d.fork_places(of.asker)),
    "usage": Verb(READ, _taken, counts=True),
    "system": Verb(ADMIN, lambda d, _: d.system({}, ""), place=True),
    "prioritize": Verb(SUBMIT, lambda d, of: d.prioritize(of.asker, -7)),
    "pause": Verb(SUBMIT, lambda d, of: d.pause(of.asker)),
    "resume": Verb(SUBMIT, lambda d, of: d.resume(of.asker)),
    "fork": Verb(SUBMIT, lambda d, of: d.fork(of.asker, 1)),
    "signal": Verb(SUBMIT, lambda d, of: d.signal(of.asker, "go")),
    "message": Verb(SUBMIT, lambda d, of: d.message(of.fixer, "hurry")),
    "patch": Verb(SUBMIT, lambda d, of: d.patch(of.fixer, {"flag_risks": ["late"]})),
    "decide": Verb(DECIDE, lambda d, of: d.decide(of.approval, "approve"), decides=True),
    "answer": Verb(DECIDE, lambda d, of: d.answer(of.question, "fast"), decides=True),
    "resolve": Verb(DECIDE, lambda d, of: d.resolve(of.doubter, "not_happened"), decides=True),
    "raise_budget": Verb(DECIDE, lambda d, of: d.raise_budget(of.fixer, max_llm_tokens=2_000_000), decides=True),
    "cancel": Verb(SUBMIT, lambda d, of: d.cancel(of.asker)),
    "queues": Verb(READ, lambda d, _: d.queues(), place=True),
    "queue": Verb(READ, lambda d, _: d.queue("default"), place=True),
    "workers": Verb(READ, lambda d, _: d.workers(), place=True),
    "in_doubt": Verb(ADMIN, lambda d, _: d.in_doubt(10), place=True),
    "versions": Verb(READ, lambda d, _: d.versions(), place=True),
    "stats": Verb(READ, lambda d, _: d.stats(), place=True),
    "history": Verb(ADMIN, lambda d, _: d.history(), place=True),
    "pause_queue": Verb(ADMIN, lambda d, _: d.pause_queue("default"), place=True),
    "unpause_queue": Verb(ADMIN, lambda d, _: d.unpause_queue("default"), place=True),
    "pause_schedule": Verb(ADMIN, lambda d, _: d.pause_schedule("nightly"), place=True),
    "unpause_schedule": Verb(ADMIN, lambda d, _: d.unpause_schedule("nightly"), place=True),
    "trigger": Verb(ADMIN, lambda d, _: d.trigger("nightly"), place=True),
    "remove_schedule": Verb(ADMIN, lambda d, _: d.remove_schedule("nightly"), place=True),
    "subscribe": Verb(ADMIN, lambda d, of: d.subscribe("https://hooks.example.com/", ["*"], tenant="acme")),
    "subscriptions": Verb(ADMIN, lambda d, _: d.subscriptions(), lists=True),
    "deliveries": Verb(ADMIN, lambda d, _: d.deliveries(), lists=True),
    "redeliver": Verb(ADMIN, lambda d, of: d.redeliver(of.delivery)),
    "unsubscribe": Verb(ADMIN, lambda d, of: d.unsubscribe(of.subscription)),
    "keys": Verb(ADMIN, lambda d, _: d.keys(), lists=True),
    "create_key": Verb(ADMIN, lambda d, of: d.create_key("more", ["read"], tenant="acme")),
    "revoke_key": Verb(ADMIN, lambda d, of: d.revoke_key(of.key)),
    "sessions": Verb(ADMIN, lambda d, _: d.sessions(), lists=True),
    "revoke_session": Verb(ADMIN, lambda d, of: d.revoke_session(of.session)),
    "locks": Verb(READ, lambda d, _: d.locks(), lists=True),
    "release_lock": Verb(ADMIN, lambda d, of: d.release_lock(of.lock, "stuck", tenant="acme")),
    "intakes": Verb(READ, lambda d, _: d.intakes(), lists=True),
    "dead_letters": Verb(READ, lambda d, _: d.dead_letters(), lists=True),
    "dead_letter": Verb(READ, lambda d, of: d.dead_letter(of.letter)),
    "redrive_letters": Verb(SUBMIT, lambda d, of: d.redrive_letters(of.letter)),
    "drop_letters": Verb(ADMIN, lambda d, of: d.drop_letters(of.letter)),
    "quotas": Verb(READ, lambda d, _: d.quotas(), lists=True, open=True),
    "set_quota": Verb(ADMIN, lambda d, _: d.set_quota("acme", {"streams": 50}), place=True),
    "reset_quota": Verb(ADMIN, lambda d, _: d.reset_quota("acme"), place=True),
    "audit": Verb(ADMIN, lambda d, _: d.audit(), lists=True),
    "verify_audit": Verb(ADMIN, lambda d, _: d.verify_audit(), place=True),
    "encryption": Verb(ADMIN, lambda d, _: d.encryption(), place=True),
    "prune": Verb(ADMIN, lambda d, of: d.prune(of.done)),
}
"""In an order in which each finds what it is for."""


def test_the_table_has_every_verb_of_the_authorized_service() -> None:
    verbs = {
        name
        for name, _ in inspect.getmembers(AuthorizedService, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    own = {"sign_out"}  # it has no arguments, and ends the caller's own session
    assert verbs - own == set(VERBS), "add a row with its scope and an example call"


class Inspector:
    """Calls a verb as every caller without the permission, and collects all values that they got as leaks."""

    def __init__(self, app: Onward, acme: TenantResources, door: type[AuthorizedService] = AuthorizedService) -> None:
        self._app, self._acme, self._door = app, acme, door
        self.cells = 0

    async def leaks(self, name: str) -> list[str]:
        verb, before = VERBS[name], await all_rows(self._app)
        leaks = await self._by_scope(name, verb)
        for who in (caller("globex"), caller(None, WORK), caller("globex", agent="fixer")):
            leaks += await self._by_tenant(name, verb, who)
        if verb.decides:
            leaks += await self._by_agent(name, verb)
        if verb.place:
            leaks += await self._expect(name, NotForTenants, verb, caller("acme"))
        after = await all_rows(self._app)
        return leaks + [f"{name}: wrote to {table}" for table in after if after[table] != before[table]]

    async def _by_scope(self, name: str, verb: Verb) -> list[str]:
        leaks = []
        for scopes in (frozenset[str](), ALL - {verb.scope}):
            for tenant in ("acme", "globex", None):
                leaks += await self._expect(name, Forbidden, verb, caller(tenant, scopes))
        return leaks

    async def _by_agent(self, name: str, verb: Verb) -> list[str]:
        return await self._expect(name, OwnCall, verb, caller("acme", agent="fixer"))

    async def _expect(self, name: str, kind: type[OnwardError], verb: Verb, who: Caller) -> list[str]:
        self.cells += 1
        try:
            got = await verb.use(self._door(self._app.service, who), self._acme)
        except kind as error:
            return [] if type(error) is kind else [f"{name}: {who} got {error!r}"]
        except OnwardError as error:
            return [f"{name}: {who} got {error!r}, and not {kind.__name__}"]
        return [f"{name}: {who} got {got!r:.80}"]

    async def _by_tenant(self, name: str, verb: Verb, who: Caller) -> list[str]:
        """A caller of another tenant gets exactly the answer for a resource that does not exist."""
        if verb.place or verb.scope not in who.scopes:
            return []
        self.cells += 1
        got, instead = await self._got(verb, who, self._acme), await self._got(verb, who, GHOST)
        if verb.counts:
            return [] if got == instead else [f"{name}: {who} got {got:.200}; of nothing it would be {instead:.200}"]
        if verb.lists:
            words = self._acme.names | ({"nightly"} if who.tenant else set())
            return [f"{name}: {who} was shown {word}" for word in sorted(words) if word in got]
        if got.partition(":")[0] not in {"NotFound", "TaskNotFound", "NotForTenants"}:
            return [f"{name}: {who} got {got:.200}"]
        return [] if got == instead else [f"{name}: {who} got {got:.200}; of nothing it would be {instead:.200}"]

    async def _got(self, verb: Verb, who: Caller, of: TenantResources) -> str:
        try:
            got = repr(await verb.use(self._door(self._app.service, who), of))
        except OnwardError as error:
            got = f"{type(error).__name__}: {error}"
        pairs = zip(dataclasses.astuple(self._acme), dataclasses.astuple(GHOST), strict=True)
        for mine, ghosts in sorted(pairs, key=lambda pair: -len(pair[0])):
            got = got if verb.lists else got.replace(mine, ghosts)
        return got


@pytest.fixture(autouse=True)
def _what_has_ended_may_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.service.pruning.MIN_AGE_S", 0.0)


@pytest.mark.slow
async def test_callers_without_permission_get_and_change_nothing(app: Onward) -> None:
    acme = (await make_tenants(app))["acme"]
    look = Inspector(app, acme)
    leaks = [leak for name in VERBS for leak in await look.leaks(name)]
    assert leaks == []
    assert look.cells > 8 * len(VERBS)
    used = caller("acme")
    for name, verb in VERBS.items():  # callers with the permission succeed, or the test would prove nothing
        who = caller(None) if verb.place or name == "schedules" else used
        if name in {"decide", "cancel"}:
            other = caller("acme", agent="reviewer")
            await verb.use(AuthorizedService(app.service, other), acme)
        else:
            assert await verb.use(AuthorizedService(app.service, who), acme) != [] or name in {"workers", "versions"}


def unchecked(name: str) -> type[AuthorizedService]:
    """A service with a verb that does not check the caller."""

    async def verb(self: AuthorizedService, *args: Any, **more: Any) -> Any:
        return await getattr(AuthorizedService(self.service, ANYBODY), name)(*args, **more)

    return type("Planted", (AuthorizedService,), {name: verb})


def careless(name: str) -> type[AuthorizedService]:
    """A service with a verb that checks the scope, and not the tenant."""

    async def verb(self: AuthorizedService, *args: Any, **more: Any) -> Any:
        operator_caller = self.caller._replace(tenant=None, agent=None, scopes=self.caller.scopes | {ADMIN})
        self.need(VERBS[name].scope)
        return await getattr(AuthorizedService(self.service, operator_caller), name)(*args, **more)

    return type("Planted", (AuthorizedService,), {name: verb})


@pytest.mark.slow
@only_memory
async def test_the_test_finds_a_verb_without_a_check(app: Onward) -> None:
    acme = (await make_tenants(app))["acme"]
    for name, verb in VERBS.items():
        assert await Inspector(app, acme, unchecked(name)).leaks(name), f"{name} for every caller"
        await restore(app, acme)
        leaks = await Inspector(app, acme, careless(name)).leaks(name)
        assert leaks or verb.open, f"{name} for all tenants"
    for name in ("decide", "answer", "resolve", "raise_budget"):

        async def anyone(self: AuthorizedService, task: Any) -> None: ...

        planted = type("Planted", (AuthorizedService,), {"_check_own_call": anyone})
        assert await Inspector(app, acme, planted)._by_agent(name, VERBS[name]), f"{name} by the agent itself"


# ── tenants ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_each_tenant_sees_exactly_its_own_tasks(app: Onward) -> None:
    tenants = await make_tenants(app)
    await app.submit("tick")
    for tenant, own in tenants.items():
        for who in (caller(tenant, WORK | {ADMIN}), caller(tenant, WORK)):
            door = AuthorizedService(app.service, who)
            seen: list[Any] = []
            cursor: str | None = None
            while True:
                page, cursor = await door.list(limit=2, cursor=cursor)
                seen += page
                if cursor is None:
                    break
            by_state = [
                task
                for state in ("pending", "running", "waiting", "completed", "failed", "cancelled")
                for task in (await door.list(state=state))[0]
            ]
            assert sorted(task.task_id for task in by_state) == sorted(task.task_id for task in seen)
            if tenant is None and ADMIN in who.scopes:
                assert len(seen) == 13
                assert len(await door.asks()) == 6
                continue
            assert {task.tenant for task in seen} == {tenant}
            assert len(seen) == (5 if tenant is None else 4)
            assert {ask.id for ask in await door.asks()} == {own.approval, own.question}
            assert [ask.id for ask in await door.asks("approval")] == [own.approval]
    assert {task.tenant for task in (await app.list())[0]} == {"acme", "globex", None}
    stranger = AuthorizedService(app.service, caller("globex"))
    assert await stranger.list(parent=tenants["acme"].asker) == ([], None)
    assert [task.task_id for task in (await stranger.list(key="the-same"))[0]] == [tenants["globex"].asker]
    assert len((await stranger.list(reason="question"))[0]) == 1


@pytest.mark.parametrize("filters", [{"text": "pw=h"}, {"labels": {"a": "b"}}, {"key": "k"}])
@pytest.mark.usefixtures("plain_payloads")
async def test_an_action_does_not_tell_a_caller_without_read_what_inputs_contain(
    app: Onward, filters: dict[str, Any]
) -> None:
    """The number of matches gave an input away, letter by letter."""
    await app.service.submit([SubmitRequest("work", "pw=hunter42", key="k", labels={"a": "b"})], unchecked=True)
    with pytest.raises(Forbidden, match="read"):
        await AuthorizedService(app.service, Caller(scopes=frozenset({SUBMIT}))).act("cancel", 1, **filters)
    both = AuthorizedService(app.service, Caller(scopes=frozenset({SUBMIT, READ})))
    assert (await both.act("cancel", 1, **filters)).matched == 1


async def test_a_conflict_does_not_tell_a_caller_without_read_which_field_differs(app: Onward) -> None:
    @app.task
    async def work(ctx: Any, user: str, pin: int) -> None: ...

    await app.service.submit([SubmitRequest("work", {"user": "ada", "pin": 1234}, key="k")])
    guess = SubmitRequest("work", {"user": "ada", "pin": 1111}, key="k")
    with pytest.raises(KeyConflict, match=r"pending.*another task name, input or options") as conflict:
        await AuthorizedService(app.service, Caller(scopes=frozenset({SUBMIT}))).submit([guess])
    assert conflict.value.differs == []
    with pytest.raises(KeyConflict, match=r"other values \(input\.pin\)"):
        await AuthorizedService(app.service, Caller(scopes=frozenset({SUBMIT, READ}))).submit([guess])


async def test_a_cursor_of_another_tenant_shows_nothing_of_it(app: Onward) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> None: ...

    doors = {tenant: AuthorizedService(app.service, caller(tenant)) for tenant in ("acme", "globex")}
    for n in range(5):
        for door in doors.values():
            await door.submit([SubmitRequest("work", n)])
    _, theirs = await doors["globex"].list(limit=2)
    seen, _ = await doors["acme"].list(cursor=theirs)
    assert seen
    assert {task.tenant for task in seen} == {"acme"}


async def test_children_forks_and_continuations_have_the_tenant_of_their_task(app: Onward) -> None:
    tenants = await make_tenants(app)
    whose = {task.task_id: task.tenant for task in (await app.list(limit=1000))[0]}
    for tenant, own in tenants.items():
        assert {whose[own.asker], whose[own.fixer], whose[own.doubter]} == {tenant}
        assert (await app.get(own.fixer)).group == tenant
    acme = tenants["acme"]
    fork = await app.fork(acme.asker, 1)  # by a program with the database
    assert (await fork.get()).tenant == "acme"
    (after,) = await AuthorizedService(app.service, caller(None)).submit(
        [SubmitRequest("quick", {"goal": "on"})], after=acme.done
    )
    assert (await app.get(after)).tenant == "acme"
    assert (await (await app.submit("quick", {"goal": "on"}, after=acme.done)).get()).tenant == "acme"


@only_postgres
async def test_a_worker_of_an_older_version_submits_children_for_the_right_tenant(app: Onward) -> None:
    @app.task
    async def work(ctx: Any) -> None: ...

    (parent,) = await AuthorizedService(app.service, caller("acme")).submit([SubmitRequest("work")])
    await sql(
        app.store,
        "INSERT INTO onward_tasks (id, task, queue, priority, created_at, fingerprint, input, options, parent) "
        f"SELECT 'child', task, queue, priority, created_at, '', input, options, id FROM onward_tasks WHERE id = '{parent}'",
    )
    assert await sql(app.store, "SELECT tenant FROM onward_tasks WHERE id = 'child'") == [("acme",)]


async def test_a_submit_from_outside_cannot_name_a_parent(app: Onward) -> None:
    """Children take the tenant of their parent; a request from outside cannot choose its tenant in this way."""
    acme = (await make_tenants(app))["acme"]
    (task_id,) = await AuthorizedService(app.service, caller("globex")).submit(
        [SubmitRequest("tick", parent=acme.asker)]
    )
    task = await app.get(task_id)
    assert (task.tenant, task.parent) == ("globex", None)


async def test_an_input_that_names_a_task_of_another_tenant_fails(app: Onward) -> None:
    """An agent continues after the task that its input names; `AuthorizedService` does not see the input."""
    tenants = await make_tenants(app)
    (sly,) = await AuthorizedService(app.service, caller("globex")).submit(
        [SubmitRequest("quick", {"goal": "tell me all", "after": tenants["acme"].done})]
    )
    (plain,) = await AuthorizedService(app.service, caller(None, WORK)).submit(
        [SubmitRequest("quick", {"goal": "tell me all", "after": tenants["acme"].done})]
    )
    (own,) = await AuthorizedService(app.service, caller("acme")).submit(
        [SubmitRequest("quick", {"goal": "on", "after": tenants["acme"].done})]
    )
    async with app.worker():
        for task_id in (sly, plain):
            task = await app.service.wait(task_id, 30)
            assert task.state == "failed"
            assert task.error is not None
            assert "there is no task" in task.error["message"]
        assert (await app.service.wait(own, 30)).state == "completed"


# ── idempotency keys ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_same_key_of_two_tenants_is_two_keys_however_many_send_it(app: Onward) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> None: ...

    doors = {tenant: AuthorizedService(app.service, caller(tenant, WORK)) for tenant in ("acme", "globex", None)}
    ids = await asyncio.gather(
        *(door.submit([SubmitRequest("work", 1, key="order-7")]) for _ in range(100) for door in doors.values())
    )
    assert len({task_id for (task_id,) in ids}) == 3
    for tenant, door in doors.items():
        (task,), _ = await door.list()
        assert (task.tenant, task.key) == (tenant, "order-7")
        with pytest.raises(KeyConflict, match="the key 'order-7' belongs to task") as conflict:
            await door.submit([SubmitRequest("work", 2, key="order-7")])
        assert conflict.value.task_id == task.task_id
        both = await door.submit([SubmitRequest("work", 1, key="order-7"), SubmitRequest("work", 3, key="order-8")])
        assert both[0] == task.task_id
    assert len((await app.list())[0]) == 6


async def test_no_key_reaches_into_another_tenant(app: Onward) -> None:
    """The store prefixes the keys of a tenant with its name and a line break. Neither keys nor tenants can contain a line break."""

    @app.task
    async def work(ctx: Any, n: int) -> None: ...

    await AuthorizedService(app.service, caller("acme")).submit([SubmitRequest("work", 1, key="order-7")])
    with pytest.raises(OnwardError, match="key must be a string of 1 to 512 printable characters"):
        await AuthorizedService(app.service, caller(None, WORK)).submit([SubmitRequest("work", 1, key="acme\norder-7")])
    with pytest.raises(OnwardError, match="tenant must be a string"):
        await AuthorizedService(app.service, caller("acme\norder-7")).submit([SubmitRequest("work", 1, key="x")])


async def test_the_tenant_is_the_default_group(app: Onward) -> None:
    @app.task
    async def work(ctx: Any, n: int) -> None: ...

    door = AuthorizedService(app.service, caller("acme"))
    plain, named = await door.submit([SubmitRequest("work", 1), SubmitRequest("work", 2, group="vip")])
    assert [(await app.get(task_id)).group for task_id in (plain, named)] == ["acme", "vip"]


@pytest.mark.parametrize("group", ["acme", "vip"])
async def test_a_tenant_cannot_use_the_limit_of_another_tenant(app: Onward, group: str) -> None:
    """A limit of one task for each group: a tenant that names a group of acme, or acme itself, does not keep tasks of acme from
    starting."""
    started: list[str] = []

    @app.task(limit=Limit(concurrency=1))
    async def hold(ctx: Any, who: str) -> None:
        started.append(who)
        await asyncio.Event().wait()

    own = None if group == "acme" else group
    for tenant, wish in (
        ("globex", SubmitRequest("hold", "globex", group=group)),
        ("acme", SubmitRequest("hold", "acme", group=own)),
        (None, SubmitRequest("hold", "nobody", group="vip")),
        ("acme", SubmitRequest("hold", "acme again", group=own)),
    ):
        await AuthorizedService(app.service, caller(tenant, WORK)).submit([wish])

    async def behind() -> list[Any]:
        return [task.input for task in (await app.list())[0] if task.reason == "quota" and len(started) > 2]

    async with app.worker():
        assert await eventually(behind) == ["acme again"]
    assert sorted(started) == ["acme", "globex", "nobody"]


# ── agents' own keys ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_agent_decides_nothing_in_a_task_that_it_takes_part_in(app: Onward) -> None:
    tenants = await make_tenants(app)
    acme = tenants["acme"]
    own, other = (AuthorizedService(app.service, caller("acme", WORK, agent=name)) for name in ("fixer", "reviewer"))
    before = await all_rows(app)
    for refused in (
        own.decide(acme.approval, "approve"),  # its own call
        own.answer(acme.question, "fast"),  # of the task above it
        own.resolve(acme.doubter, "happened"),  # of a sibling
        own.raise_budget(acme.asker, max_llm_tokens=9),  # above it
    ):
        with pytest.raises(OwnCall, match="a person or another key has to decide; nothing was written"):
            await refused
    assert await all_rows(app) == before
    assert (await other.decide(acme.approval, "approve")).id == acme.approval
    assert [wire.decode(message.data)["by"] for message in await app.store.inbox(acme.fixer)] == ["somebody of acme"]


async def test_an_agent_does_not_approve_what_it_asked_for_with_its_own_key(app: Onward) -> None:
    @app.task
    async def deploy(ctx: Any) -> str:
        await ctx.approve("go on?")
        return "done"

    door = AuthorizedService(app.service, caller("acme", WORK, agent="fixer"))
    (task_id,) = await door.submit([SubmitRequest("deploy", key="k")])
    async with app.worker():
        while not (asks := await door.asks()):  # noqa: ASYNC110 -- from outside
            await asyncio.sleep(0.01)
        with pytest.raises(OwnCall):
            await door.decide(asks[0].id, "approve")
        person = AuthorizedService(app.service, caller("acme", WORK))
        assert await person.submit([SubmitRequest("deploy", key="k")]) == [task_id], (
            "the statements are the same for every caller"
        )
        await person.decide(asks[0].id, "approve")
        assert (await app.service.wait(task_id, 30)).result == "done"


async def test_an_agent_does_not_approve_what_it_forked_with_its_own_key(app: Onward) -> None:
    """A fork with another input is another kind of submit, and the fork of a child has no parent that would name the agent."""

    @app.task
    async def deploy(ctx: Any, what: str) -> str:
        await ctx.approve(f"deploy {what}?")
        return what

    person = AuthorizedService(app.service, caller("acme", WORK))
    (origin,) = await person.submit([SubmitRequest("deploy", "the site", labels={"a": "b"})])
    door = AuthorizedService(app.service, caller("acme", WORK, agent="fixer"))
    fork = await door.fork(origin, input="what nobody asked for")
    async with app.worker():
        while not (asks := {ask.task_id: ask.id for ask in await door.asks()}).keys() >= {origin, fork}:  # noqa: ASYNC110 -- from outside
            await asyncio.sleep(0.01)
        with pytest.raises(OwnCall):
            await door.decide(asks[fork], "approve")
        await door.decide(asks[origin], "approve")
    forked = await app.get(fork)
    assert (forked.labels, forked.tenant) == ({"a": "b"}, "acme")


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_admin_of_a_tenant_runs_the_keys_of_the_tenant_alone(app: Onward) -> None:
    place = await app.keys.create("ada", SCOPES)
    admin = AuthorizedService(app.service, caller("acme"))
    made = await admin.create_key("shop", ["read", "submit"])
    assert made.key.tenant == "acme"
    with pytest.raises(NotForTenants, match="about a key of tenant 'globex', beyond that tenant"):
        await admin.create_key("spy", ["read"], tenant="globex")
    for key in (place.key.id, "000000000000", "' OR 1=1", "ä"):
        with pytest.raises(NotFound, match="there is no key"):
            await admin.revoke_key(key)
    assert [key.name for key in await admin.keys()] == ["shop"]
    assert [key.name for key in await AuthorizedService(app.service, caller(None)).keys()] == ["ada", "shop"]
    assert [entry.subject for entry in await admin.audit()] == [made.key.id]
    revoked = await admin.revoke_key(made.key.id)
    assert not revoked.valid
    assert await admin.revoke_key(made.key.id) == revoked
    assert [entry.action for entry in await app.audit()] == ["create_key", "create_key", "revoke_key"]


async def test_a_foreign_task_is_looked_up_like_an_unknown_task(app: Onward) -> None:
    """A foreign task and an unknown task need the same statements, so that the time of an answer does not tell them apart."""
    acme = (await make_tenants(app))["acme"]
    statements: list[str] = []
    real = app.store

    def counted(name: str) -> Any:
        async def verb(*args: Any, **more: Any) -> Any:
            statements.append(name)
            return await operator.attrgetter(name)(real)(*args, **more)

        return verb

    spied = Through(
        real, **{name: counted(name) for name in ("get", "journal", "listing.asks", "budgets.get", "contents", "send")}
    )
    app._join(spied)
    door = AuthorizedService(app.service, caller("globex"))
    for name, verb in VERBS.items():
        if (
            verb.lists
            or verb.counts
            or verb.place
            or name in {"create_key", "release_lock", "revoke_key", "revoke_session", "subscribe"}
        ):
            continue
        ways = []
        for of in (acme, GHOST):
            statements.clear()
            with pytest.raises((TaskNotFound, NotFound)):
                await verb.use(door, of)
            ways.append(tuple(statements))
        assert ways[0] == ways[1], name
    app._join(real)
