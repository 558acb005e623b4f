"""Sign-in with a certified OpenID provider that is not ours, over real sockets: `oidc-provider` under Node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from onward import Onward
from rig.oidc import OidcProvider
from tests.kit import only_file, running
from tests.server.conftest import serving
from tests.server.people import CONSOLE, free_address

ACCOUNTS: dict[str, dict[str, Any]] = {
    "ada": {"email": "ada@example.com", "email_verified": True, "groups": ["chiefs"], "org": "us"},
    "bob": {"name": "Bob", "groups": ["ops", "leads"], "org": "acme"},
    "eve": {"email": "eve@example.com", "groups": ["staff"], "org": "acme"},
}


@contextlib.asynccontextmanager
async def together(url: str, **more: Any) -> AsyncIterator[tuple[OidcProvider, Onward, str]]:
    """A provider, and a server of ours that trusts it."""
    bound, address = free_address()
    provider = OidcProvider(f"{address}/api/sign-in/callback", ACCOUNTS, **more)
    with running(provider, "there is no OpenID provider here"):
        app = Onward(
            url,
            oidc_issuer=provider.issuer,
            oidc_client_id=provider.client_id,
            oidc_client_secret=provider.secret,
            oidc_roles="chiefs=admin,ops=operator,leads=approver",
            oidc_tenant_claim="org",
            oidc_no_tenant="us",
            public_url=address,
        )
        async with app, serving(app, bound=bound):
            yield provider, app, address


async def sign_in(provider: OidcProvider, browser: httpx2.AsyncClient, login: str) -> httpx2.Response:
    begun = await browser.get("/api/sign-in", params={"next": "/tasks"})
    assert begun.status_code == 303, begun.text
    back = await asyncio.to_thread(provider.sign_in, begun.headers["location"], login)
    return await browser.get(back)


@only_file
@pytest.mark.parametrize(
    "more", [{}, {"in_id_token": True}, {"secret": ""}], ids=["userinfo", "id token", "public client"]
)
async def test_people_sign_in_with_a_real_provider(url: str, more: dict[str, Any]) -> None:
    async with together(url, **more) as (provider, app, address):
        async with httpx2.AsyncClient(base_url=address, timeout=60) as browser:
            back = await sign_in(provider, browser, "ada")
            assert (back.status_code, back.headers["location"]) == (303, f"{address}/#/tasks")
            me = (await browser.get("/api/whoami", headers=CONSOLE)).json()
            assert (me["person"], me["roles"], me["tenant"]) == ("ada", ["admin"], None)
            assert me["name"] == "ada@example.com (ada)"
        async with httpx2.AsyncClient(base_url=address, timeout=60) as browser:
            await sign_in(provider, browser, "bob")
            me = (await browser.get("/api/whoami", headers=CONSOLE)).json()
            assert (me["person"], me["roles"], me["tenant"]) == ("bob", ["approver", "operator"], "acme")
        async with httpx2.AsyncClient(base_url=address, timeout=60) as browser:
            refused = await sign_in(provider, browser, "eve")
            assert refused.status_code == 403
            assert "has no role here" in refused.text
            assert (await browser.get("/api/whoami", headers=CONSOLE)).status_code == 401
        assert [entry.action for entry in await app.audit()] == ["sign_in", "sign_in", "sign_in_refused"]


@only_file
async def test_a_code_of_a_real_provider_counts_once(url: str) -> None:
    async with together(url) as (provider, _, address):
        async with httpx2.AsyncClient(base_url=address, timeout=60) as browser:
            begun = await browser.get("/api/sign-in")
            pending = dict(browser.cookies)
            back = await asyncio.to_thread(provider.sign_in, begun.headers["location"], "ada")
            assert (await browser.get(back)).status_code == 303
            again = await browser.get(back, headers={"Cookie": f"onward-login={pending['onward-login']}"})
            assert (again.status_code, "does not accept the code" in again.text) == (403, True)
        async with httpx2.AsyncClient(base_url=address, timeout=60) as thief:
            await thief.get("/api/sign-in")
            stolen = await asyncio.to_thread(provider.sign_in, begun.headers["location"], "ada")
            refused = await thief.get(stolen)
            assert (refused.status_code, "another sign-in" in refused.text) == (403, True)
