"""Every call with every role, by session: of the own tenant, of another one, and without one. The tests try every cell of the
table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.core.caller import ADMIN, ROLES
from onward.server.access.service import AuthorizedService
from tests.kit import only_memory
from tests.server.conftest import serving
from tests.server.matrix import CALLS, ROWS, may, page
from tests.server.people import free_address, settings, signed_in
from tests.server.tenants import all_rows, make_tenants
from tests.server.test_access_http import Client, Inspector

TENANTS = {"own": "acme", "stranger": "globex", "none": None}
NO_QUOTA = {"quota_requests": 0, "quota_key_requests": 0, "quota_refused": 0}


class People(Inspector):
    """Makes calls in the name of a person of each role and tenant."""

    async def prepare(self) -> None:
        await super().prepare()
        self._people = {
            f"{role} {where}": await signed_in(self._app, f"{role} {where}", [role], tenant)
            for where, tenant in TENANTS.items()
            for role in ROLES
        }

    def _headers(self, who: str) -> dict[str, str]:
        return self._people[who] if who in self._people else super()._headers(who)

    async def wrong_cells(self, name: str) -> list[str]:
        """The wrong cells among those that have to refuse, or have to show nothing of other tenants."""
        row = ROWS[name]
        if not row.scope:
            return []
        wrong = []
        for role, scopes in ROLES.items():
            lacks = row.scope not in scopes
            for where in TENANTS:
                who = f"{role} {where}"
                if lacks:
                    wrong += await self._refused(name, who, 403, "forbidden")
                elif row.place and where != "none":
                    wrong += await self._refused(name, who, 403, "not_for_tenants")
                elif where == "stranger" or (where == "none" and ADMIN not in scopes and not row.place):
                    wrong += await self._strange(name, row, who)
        return wrong

    async def not_allowed(self, name: str, *, whole: bool) -> list[str]:
        """The cells that refuse a caller with the permission. A change by the first call may make the next one fail. Without
        `whole`, only a part of the cells is tried."""
        row, wrong, first = ROWS[name], [], whole
        for role in ("viewer", "approver", "operator", "admin"):
            for where in ("own", "none"):
                sees = where == "own" or ADMIN in ROLES[role] or row.place or not row.scope
                if not may(row, role, tenant=where != "none") or not sees or name == "sign_out":
                    continue
                self.cells += 1
                answer = await self.ask(name, f"{role} {where}")
                fine = (
                    answer.is_success
                    if first or CALLS[row.call or name].method == "GET"
                    else answer.status_code not in {401, 403}
                )
                wrong += [] if fine else [f"{name} {role} {where}: {answer.status_code} {answer.text:.200}"]
                first = False
        return wrong


@pytest.fixture
async def people(url: str) -> AsyncIterator[People]:
    bound, address = free_address()
    app = Onward(url, lease_s=1.0, heartbeat_s=0.1, poll_s=0.05, grace_s=1.0, **settings(address), **NO_QUOTA)
    async with app:
        acme = (await make_tenants(app))["acme"]
        async with serving(app, bound=bound), Client(base_url=address, timeout=60) as client:
            look = People(app, client, acme)
            await look.prepare()
            yield look


OPEN = {"hook", "sign_in", "sign_in_callback", "healthz", "readyz"}


@pytest.mark.slow
async def test_every_cell_of_the_table(people: People, kind: str, prove: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.service.pruning.MIN_AGE_S", 0.0)  # tasks that have just ended may be pruned
    names = list(ROWS) if prove or kind != "postgres" else list(ROWS)[::4]  # access does not depend on the store
    before = await all_rows(people._app)
    wrong = [cell for name in names for cell in await people.wrong_cells(name)]
    after = await all_rows(people._app)
    assert wrong + [table for table in after if after[table] != before[table]] == []
    assert [
        cell
        for name in names
        if name not in OPEN
        for cell in await people.not_allowed(name, whole=len(names) == len(ROWS))
    ] == []
    scoped_rows = [row for name in names if (row := ROWS[name]).scope]
    print(f"{people.cells} cells on {kind}")
    assert people.cells >= len(scoped_rows) * len(ROLES) * len(TENANTS) * 0.9, "every cell was tried"
    for role in ROLES:  # at the end: it is the end of their sessions
        who = f"{role} own"
        assert (await people.ask("sign_out", who)).status_code == 204
        assert (await people.ask("whoami", who)).status_code == 401


@only_memory
async def test_the_test_finds_a_role_that_allows_too_much(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table finds a service that checks no scope, and one that treats a person of a tenant like a person without one."""
    with monkeypatch.context() as planted:
        planted.setattr(AuthorizedService, "need", lambda self, scope: None)
        planted.setattr(AuthorizedService, "need_any", lambda self, scopes: None)
        for name in ("sessions", "keys", "audit", "deliveries", "fork preview"):
            assert await people.wrong_cells(name), name
    real = AuthorizedService.__init__

    def without_tenant(self: AuthorizedService, service: Any, caller: Any) -> None:
        real(self, service, caller._replace(tenant=None))

    with monkeypatch.context() as planted:
        planted.setattr(AuthorizedService, "__init__", without_tenant)
        for name in ("queues", "sessions", "keys", "system", "quotas"):
            assert await people.wrong_cells(name) or ROWS[name].open, name


def test_the_page_of_the_docs_matches_the_table() -> None:
    path = Path(__file__).parents[2] / "docs" / "reference" / "permissions.md"
    assert path.read_text(encoding="utf-8") == page(), "python -m tests.server.matrix > docs/reference/permissions.md"
