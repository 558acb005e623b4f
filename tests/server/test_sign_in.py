"""Sign-in over HTTP, from the button to the session, with a provider that also gives answers that a correct one never gives."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from onward import Onward
from onward.config import Settings, variable
from onward.core.caller import ROLES
from onward.core.identity import parse_role_map
from onward.server.access import sign_in as module
from onward.server.access.sign_in import REFUSALS_AT_ONCE, local_page
from tests.kit import HandClock
from tests.server.people import CONSOLE
from tests.server.provider import ISSUER, FakeProvider, jwk

PUBLIC = "https://onward.example.com"
PEER = ("203.0.113.7", 1)


class Browser:
    """A browser: it keeps cookies, and names the person to the provider."""

    def __init__(self, app: Onward, provider: FakeProvider, client: httpx2.AsyncClient) -> None:
        self.app, self.provider, self.client = app, provider, client

    async def begin(self, **query: str) -> dict[str, str]:
        """The parameters of the request to the provider."""
        answer = await self.client.get("/api/sign-in", params=query)
        assert answer.status_code == 303, answer.text
        where = urlsplit(answer.headers["location"])
        assert f"{where.scheme}://{where.netloc}{where.path}" == f"{ISSUER}/authorization"
        return {name: values[0] for name, values in parse_qs(where.query).items()}

    async def come_back(self, params: dict[str, str], **over: Any) -> httpx2.Response:
        """The provider sends the browser back, with the claims of the person or with other parameters."""
        claims = self.provider.claims(
            params["nonce"], **{"groups": ["viewer"], "email": "ada@example.com", **over.pop("claims", {})}
        )
        self.provider.codes["the code"] = params["code_challenge"], claims
        query = {"code": "the code", "state": params["state"], "iss": ISSUER, **over}
        return await self.client.get(
            "/api/sign-in/callback", params={name: value for name, value in query.items() if value is not None}
        )

    async def who(self) -> httpx2.Response:
        return await self.client.get("/api/whoami", headers=CONSOLE)

    async def audited(self) -> list[tuple[str, Any]]:
        from onward.core import wire

        return [(entry.action, wire.decode(entry.data)) for entry in await self.app.audit(limit=1000)]


@pytest.fixture
def fake(clock: HandClock) -> FakeProvider:
    return FakeProvider(clock.now)


@contextlib.asynccontextmanager
async def opened(url: str, clock: HandClock, fake: FakeProvider, **more: Any) -> AsyncIterator[Browser]:
    more = {"public_url": PUBLIC, **more}
    app = Onward(url, clock=clock, oidc_issuer=ISSUER, oidc_client_id="onward", **more)
    served = app.asgi()
    door = served.state.server.sign_in
    door._provider._transport = fake.transport
    transport = httpx2.ASGITransport(served, client=PEER)
    async with app, httpx2.AsyncClient(base_url=PUBLIC, transport=transport) as client:
        yield Browser(app, fake, client)


@pytest.fixture
async def browser(url: str, clock: HandClock, fake: FakeProvider) -> AsyncIterator[Browser]:
    async with opened(url, clock, fake) as browser:
        yield browser


def refused(answer: httpx2.Response, sentence: str, status: int = 403) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert sentence in answer.text
    assert "__Host-onward=" not in str(answer.headers.get_list("set-cookie"))


async def test_a_person_signs_in_and_out(browser: Browser) -> None:
    params = await browser.begin(next="/tasks/t-1?tab=state")
    assert params["redirect_uri"] == f"{PUBLIC}/api/sign-in/callback"
    back = await browser.come_back(params)
    assert (back.status_code, back.headers["location"]) == (303, f"{PUBLIC}/#/tasks/t-1?tab=state")
    assert (back.headers["cache-control"], back.headers["referrer-policy"]) == ("no-store", "no-referrer")
    session, pending = sorted(back.headers.get_list("set-cookie"), key=lambda cookie: "login" in cookie)
    assert session.startswith("__Host-onward=")
    assert session.endswith("; HttpOnly; Max-Age=86400; Path=/; SameSite=lax; Secure")
    assert pending.startswith('__Host-onward-login=""; HttpOnly; Max-Age=0;')
    me = (await browser.who()).json()
    assert (me["person"], me["name"], me["roles"]) == ("a-1", "ada@example.com (a-1)", ["viewer"])
    (entry,) = await browser.audited()
    assert entry == ("sign_in", {"name": "ada@example.com", "person": "a-1", "roles": "viewer"})
    out = await browser.client.post("/api/sign-out", headers={**CONSOLE, "Origin": PUBLIC})
    assert out.status_code == 204
    assert (await browser.who()).status_code == 401
    assert "__Host-onward" not in browser.client.cookies


async def test_the_token_in_the_cookie_is_nowhere_in_the_database(browser: Browser) -> None:
    from tests.server.tenants import all_rows

    await browser.come_back(await browser.begin())
    token = browser.client.cookies["__Host-onward"]
    assert (await browser.who()).status_code == 200
    assert token not in str(await all_rows(browser.app))


async def test_answers_to_another_sign_in_are_refused(browser: Browser) -> None:
    params = await browser.begin()
    refused(await browser.come_back(params, state="made up"), "belongs to another sign-in")
    params = await browser.begin()
    refused(await browser.come_back(params, state=None), "belongs to another sign-in")
    params = await browser.begin()
    refused(await browser.come_back(params, iss="https://evil.example"), "another identity provider")
    params = await browser.begin()
    refused(await browser.come_back(params, claims={"nonce": "of another"}), "its nonce is wrong")
    params = await browser.begin()
    refused(await browser.come_back(params, code="made up"), "does not accept the code")
    params = await browser.begin()
    refused(await browser.come_back(params, code=None), "gave no code")
    params = await browser.begin()
    refused(await browser.come_back(params, code="x" * 9_000), "gave no code")
    params = await browser.begin()
    refused(
        await browser.come_back(params, error="access_denied", error_description="<b>no</b>"), "&lt;b&gt;no&lt;/b&gt;"
    )
    params = await browser.begin()
    browser.client.cookies.clear()
    refused(await browser.come_back(params), f"open {PUBLIC} and")
    refused(await browser.come_back(params), "has not begun a sign-in here")
    assert (await browser.who()).status_code == 401
    assert [data["cause"] for _, data in await browser.audited()] == [
        "state", "state", "state", "token", "code", "code", "code", "provider", "state", "state",
    ]  # fmt: skip
    assert {action for action, _ in await browser.audited()} == {"sign_in_refused"}


async def test_a_code_counts_once_and_only_with_the_verifier_of_its_browser(browser: Browser, clock: HandClock) -> None:
    params = await browser.begin()
    browser.provider.codes["stolen"] = (
        params["code_challenge"],
        browser.provider.claims(params["nonce"], groups=["admin"]),
    )
    thief = await browser.begin()  # in a browser of its own it has another verifier
    answer = await browser.client.get("/api/sign-in/callback", params={"code": "stolen", "state": thief["state"]})
    refused(answer, "does not accept the code")
    params = await browser.begin()
    cookie = browser.client.cookies["__Host-onward-login"]
    assert (await browser.come_back(params)).status_code == 303
    browser.client.cookies.set("__Host-onward-login", cookie)
    again = {"code": "the code", "state": params["state"]}
    refused(await browser.client.get("/api/sign-in/callback", params=again), "does not accept the code")


COOKIES = ["", "a", "a.b.c", "a.b.c.!", "a.b.c.d.e", "...", "a.b.c.\xff", "a.b.c." + "x" * 9000, "a.b.c.4pyTIA"]


async def test_a_forged_cookie_is_refused(browser: Browser) -> None:
    for cookie in COOKIES:
        headers = [("Cookie", f"__Host-onward-login={cookie}".encode("latin-1"))]
        refused(await browser.client.get("/api/sign-in/callback?state=a&code=c", headers=headers), "sign in")


PAGES = [
    "//evil.example",
    "https://evil.example",
    "/\\evil.example",
    "javascript:alert(1)",
    "/a b",
    "/é",
    "",
    "/" * 501,
]


def test_after_the_sign_in_comes_a_page_of_the_console() -> None:
    assert local_page("/tasks?state=failed") == "/tasks?state=failed"
    for page in PAGES:
        assert local_page(page) in {"/", page}
        assert f"{PUBLIC}/#{local_page(page)}".startswith(f"{PUBLIC}/#/"), "the page is always behind the #"


async def test_the_next_page_cannot_lead_to_another_site(browser: Browser) -> None:
    for page in PAGES:
        begun = await browser.client.get("/api/sign-in", params={"next": page})
        if begun.status_code == 303:
            query = parse_qs(urlsplit(begun.headers["location"]).query)
            back = await browser.come_back({name: values[0] for name, values in query.items()})
            assert back.headers["location"].startswith(f"{PUBLIC}/#/")
        else:
            assert begun.status_code == 422


async def test_a_person_without_a_role_or_tenant_reads_why(url: str, clock: HandClock, fake: FakeProvider) -> None:
    more = {"oidc_roles": "ops=operator,chiefs=admin", "oidc_tenant_claim": "org", "oidc_no_tenant": "us"}
    async with opened(url, clock, fake, **more) as browser:
        answer = await browser.come_back(await browser.begin(), claims={"groups": ["admin", "<i>"], "org": "acme"})
        refused(answer, "The person ada@example.com has no role here")
        answer = await browser.come_back(await browser.begin(), claims={"groups": ["chiefs"]})
        refused(answer, "has no tenant")
        assert [(data["cause"], action) for action, data in await browser.audited()] == [
            ("no_role", "sign_in_refused"),
            ("no_tenant", "sign_in_refused"),
        ]
        assert {entry.key for entry in await browser.app.audit()} == {"person:a-1"}
        await browser.come_back(await browser.begin(), claims={"groups": ["chiefs"], "org": "acme"})
        assert (await browser.who()).json()["tenant"] == "acme"
        await browser.come_back(await browser.begin(), claims={"groups": ["chiefs"], "org": "us"})
        assert (await browser.who()).json()["tenant"] is None


async def test_groups_from_the_userinfo_endpoint(browser: Browser, fake: FakeProvider) -> None:
    fake.more = {"sub": "a-1", "groups": ["operator"], "iss": "https://evil.example", "email": "eve@example.com"}
    await browser.come_back(await browser.begin(), claims={"groups": None})
    me = (await browser.who()).json()
    assert (me["roles"], me["name"]) == (["operator"], "ada@example.com (a-1)"), "claims of the token go first"
    fake.more["sub"] = "b-2"
    answer = await browser.come_back(await browser.begin(), claims={"groups": None})
    refused(answer, "of another subject")


async def test_refusals_are_audited_in_bounded_number(browser: Browser, clock: HandClock) -> None:
    for _ in range(REFUSALS_AT_ONCE + 40):
        await browser.client.get("/api/sign-in/callback", params={"state": "s", "code": "c"})
    entries = await browser.audited()
    assert len(entries) == REFUSALS_AT_ONCE
    await browser.come_back(await browser.begin(), claims={"groups": []})
    assert (await browser.audited())[-1][1]["cause"] == "no_role", "other causes have a bound of their own"
    clock.jump(60)
    await browser.client.get("/api/sign-in/callback")
    assert (await browser.audited())[-1][1]["left_out"] == 40


async def test_an_unreachable_provider_is_reported_and_the_server_keeps_working(
    browser: Browser, fake: FakeProvider
) -> None:
    params = await browser.begin()
    fake.answers["/token"] = httpx2.Response(503)
    refused(await browser.come_back(params), "cannot be used now", 502)
    fake.answers["/.well-known/openid-configuration"] = httpx2.Response(500)
    browser.app._clock.jump(700)  # type: ignore[attr-defined] -- a HandClock
    begun = await browser.client.get("/api/sign-in")
    assert (begun.status_code, begun.json()["code"]) == (502, "identity_provider_unavailable")
    assert (await browser.client.get("/healthz")).status_code == 200


async def test_few_codes_are_exchanged_at_once(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EXCHANGES", 0)
    refused(await browser.come_back(await browser.begin()), "try again in a few seconds", 503)


async def test_sign_in_works_after_the_provider_rotates_its_key(
    browser: Browser, fake: FakeProvider, clock: HandClock
) -> None:
    assert (await browser.come_back(await browser.begin())).status_code == 303
    from tests.server.provider import RSA_KEYS

    fake.keys = [jwk(RSA_KEYS[1], "k2")]
    clock.jump(31)
    original = fake.token
    fake.token = lambda claims: original(claims, RSA_KEYS[1], kid="k2")  # type: ignore[method-assign]
    assert (await browser.come_back(await browser.begin())).status_code == 303


async def test_a_server_without_a_provider_has_no_sign_in(app: Onward) -> None:
    transport = httpx2.ASGITransport(app.asgi(), client=PEER)
    async with httpx2.AsyncClient(base_url=PUBLIC, transport=transport) as client:
        for path in ("/api/sign-in", "/api/sign-in/callback"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "no_sign_in")
        assert "sign_in" not in (await client.get("/api/tasks")).json()


def test_the_guide_names_settings_that_exist_and_the_scopes_of_each_role() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "sign-in.md").read_text(encoding="utf-8")
    variables = {variable(field.name) for field in dataclasses.fields(Settings)}
    assert set(re.findall(r"ONWARD_[A-Z_]+", guide)) <= variables
    ours = {name for name in variables if name.startswith(("ONWARD_OIDC_", "ONWARD_SESSION_"))}
    assert ours <= set(re.findall(r"ONWARD_[A-Z_]+", guide))
    rows = dict(re.findall(r"^\| `(\w+)` \| ([a-z, ]+) \|", guide, re.MULTILINE))
    assert {role: set(scopes.split(", ")) for role, scopes in rows.items()} == ROLES
    (example,) = re.findall(r"ONWARD_OIDC_ROLES='(.+)'", guide)
    assert set((parse_role_map(example) or {}).values()) == set(ROLES)
