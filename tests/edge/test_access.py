"""The door: every verb for everybody who may not. Nothing of a tenant is shown to another, and who is refused has written nothing.

The table of verbs is complete, or the first test fails: a new verb of `Door` needs a row.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onward import Onward
from onward.core.caller import ANYBODY, SCOPES, Caller
from onward.edge.door import Door
from onward.edge.errors import NotForTenants, OwnCall
from onward.errors import Forbidden, KeyConflict, NotFound, OnwardError, TaskNotFound
from onward.wishes import Wish
from tests.edge.tenants import (
    ADMIN,
    ALL,
    DECIDE,
    GHOST,
    READ,
    SUBMIT,
    WORK,
    Belongings,
    caller,
    everything,
    town,
)
from tests.kit import Through, only_memory, sql


@dataclasses.dataclass(frozen=True)
class Verb:
    """What a verb needs, and how it is used on what a tenant has."""

    scope: str
    use: Callable[[Door, Belongings], Awaitable[Any]]
    lists: bool = False
    """Whether it shows what the caller has, which for a stranger is something else."""
    decides: bool = False
    """Whether an agent's own key is no good for it."""
    place: bool = False
    """Whether it is for callers without a tenant."""


async def _tail(door: Door, of: Belongings) -> Any:
    async for record in await door.tail(of.done):
        return record
    raise AssertionError("a journal without a record")


VERBS: dict[str, Verb] = {
    "get": Verb(READ, lambda d, of: d.get(of.fixer)),
    "list": Verb(READ, lambda d, _: d.list(), lists=True),
    "wait": Verb(READ, lambda d, of: d.wait(of.done, 0)),
    "journal": Verb(READ, lambda d, of: d.journal(of.fixer)),
    "tail": Verb(READ, _tail),
    "state": Verb(READ, lambda d, of: d.state(of.fixer)),
    "artifacts": Verb(READ, lambda d, of: d.artifacts(of.asker)),
    "artifact": Verb(READ, lambda d, of: d.artifact(of.asker, of.artifact)),
    "budget": Verb(READ, lambda d, of: d.budget(of.fixer)),
    "asks": Verb(READ, lambda d, _: d.asks(), lists=True),
    "ask": Verb(READ, lambda d, of: d.ask(of.approval)),
    "doubts": Verb(READ, lambda d, of: d.doubts(of.doubter)),
    "schedules": Verb(READ, lambda d, _: d.schedules(), lists=True),
    "submit": Verb(SUBMIT, lambda d, of: d.submit([Wish("quick", {"goal": "on"})], after=of.done)),
    "prioritize": Verb(SUBMIT, lambda d, of: d.prioritize(of.asker, 7)),
    "pause": Verb(SUBMIT, lambda d, of: d.pause(of.asker)),
    "resume": Verb(SUBMIT, lambda d, of: d.resume(of.asker)),
    "fork": Verb(SUBMIT, lambda d, of: d.fork(of.asker, 1)),
    "signal": Verb(SUBMIT, lambda d, of: d.signal(of.asker, "go")),
    "decide": Verb(DECIDE, lambda d, of: d.decide(of.approval, "approve"), decides=True),
    "answer": Verb(DECIDE, lambda d, of: d.answer(of.question, "fast"), decides=True),
    "resolve": Verb(DECIDE, lambda d, of: d.resolve(of.doubter, "not_happened"), decides=True),
    "raise_budget": Verb(DECIDE, lambda d, of: d.raise_budget(of.fixer, max_llm_tokens=2_000_000), decides=True),
    "cancel": Verb(SUBMIT, lambda d, of: d.cancel(of.asker)),
    "pause_schedule": Verb(ADMIN, lambda d, _: d.pause_schedule("nightly"), place=True),
    "unpause_schedule": Verb(ADMIN, lambda d, _: d.unpause_schedule("nightly"), place=True),
    "trigger": Verb(ADMIN, lambda d, _: d.trigger("nightly"), place=True),
    "keys": Verb(ADMIN, lambda d, _: d.keys(), lists=True),
    "create_key": Verb(ADMIN, lambda d, of: d.create_key("more", ["read"], tenant="acme")),
    "revoke_key": Verb(ADMIN, lambda d, of: d.revoke_key(of.key)),
    "audit": Verb(ADMIN, lambda d, _: d.audit(), lists=True),
}
"""In an order in which each finds what it is for."""


def test_the_table_has_every_verb_of_the_door() -> None:
    verbs = {name for name, _ in inspect.getmembers(Door, inspect.iscoroutinefunction) if not name.startswith("_")}
    assert verbs == set(VERBS), "say here what it needs, and how it is used"


class Inspector:
    """Tries a verb in the name of all who may not; what they got is a leak."""

    def __init__(self, app: Onward, acme: Belongings, door: type[Door] = Door) -> None:
        self._app, self._acme, self._door = app, acme, door
        self.cells = 0

    async def leaks(self, name: str) -> list[str]:
        verb = VERBS[name]
        found = await self._by_scope(name, verb)
        for who in (caller("globex"), caller(None, WORK), caller("globex", agent="fixer")):
            found += await self._by_tenant(name, verb, who)
        if verb.decides:
            found += await self._by_agent(name, verb)
        if verb.place:
            found += await self._expect(name, NotForTenants, verb, caller("acme"))
        return found

    async def _by_scope(self, name: str, verb: Verb) -> list[str]:
        found = []
        for scopes in (frozenset[str](), ALL - {verb.scope}):
            for tenant in ("acme", "globex", None):
                found += await self._expect(name, Forbidden, verb, caller(tenant, scopes))
        return found

    async def _by_agent(self, name: str, verb: Verb) -> list[str]:
        return await self._expect(name, OwnCall, verb, caller("acme", agent="fixer"))

    async def _expect(self, name: str, kind: type[OnwardError], verb: Verb, who: Caller) -> list[str]:
        self.cells += 1
        before = await everything(self._app)
        try:
            got = await verb.use(self._door(self._app.service, who), self._acme)
        except kind as error:
            told = [] if type(error) is kind else [f"{name}: {who} got {error!r}"]
        except OnwardError as error:
            told = [f"{name}: {who} got {error!r}, and not {kind.__name__}"]
        else:
            told = [f"{name}: {who} got {got!r:.80}"]
        return told + await self._written(name, who, before)

    async def _by_tenant(self, name: str, verb: Verb, who: Caller) -> list[str]:
        """A stranger gets what it would get if there were nothing of the sort, to the letter."""
        if verb.place or verb.scope not in who.scopes:
            return []
        self.cells += 1
        before = await everything(self._app)
        got, instead = await self._got(verb, who, self._acme), await self._got(verb, who, GHOST)
        if verb.lists:
            told = [f"{name}: {who} was shown {word}" for word in sorted(self._acme.names) if word in got]
        elif got.partition(":")[0] not in {"NotFound", "TaskNotFound", "NotForTenants"}:
            told = [f"{name}: {who} got {got:.200}"]
        else:
            told = [] if got == instead else [f"{name}: {who} got {got:.200}; of nothing it would be {instead:.200}"]
        return told + await self._written(name, who, before)

    async def _got(self, verb: Verb, who: Caller, of: Belongings) -> str:
        try:
            got = repr(await verb.use(self._door(self._app.service, who), of))
        except OnwardError as error:
            got = f"{type(error).__name__}: {error}"
        for mine, nobodys in zip(dataclasses.astuple(self._acme), dataclasses.astuple(GHOST), strict=True):
            got = got if verb.lists else got.replace(mine, nobodys)
        return got

    async def _written(self, name: str, who: Caller, before: dict[str, list[str]]) -> list[str]:
        after = await everything(self._app)
        return [f"{name}: {who} has written to {table}" for table in after if after[table] != before[table]]


async def test_nobody_gets_what_is_not_for_them(app: Onward) -> None:
    acme = (await town(app))["acme"]
    look = Inspector(app, acme)
    leaks = [leak for name in VERBS for leak in await look.leaks(name)]
    assert leaks == []
    assert look.cells > 9 * len(VERBS)
    used = caller("acme")
    for name, verb in VERBS.items():  # and those who may, can: or all of this would say nothing
        who = caller(None) if verb.place else used
        if name in {"decide", "cancel"}:
            other = caller("acme", agent="reviewer")
            await verb.use(Door(app.service, other), acme)
        else:
            assert await verb.use(Door(app.service, who), acme) != []
