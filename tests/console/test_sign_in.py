"""Sign-in in a real browser, with a real provider: the button, the person, their roles, and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rig import server as rig_server
from rig.oidc import OidcProvider
from tests.console.conftest import Server, Visit
from tests.kit import running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]  # one browser at a time

ACCOUNTS = {
    "ada": {"email": "ada@example.com", "email_verified": True, "groups": ["admin"]},
    "vic": {"email": "vic@example.com", "email_verified": True, "groups": ["viewer"]},
    "eve": {"email": "eve@example.com", "email_verified": True, "groups": []},
}


def expect(target: Any) -> Any:
    from playwright.sync_api import expect

    return expect(target)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`onward serve` with a provider. Both have to know the address of the other before they start."""
    port = rig_server.free_port()
    address = f"http://localhost:{port}"
    with running(
        OidcProvider(f"{address}/api/sign-in/callback", ACCOUNTS), "there is no OpenID provider here"
    ) as provider:
        variables = {
            "ONWARD_PUBLIC_URL": address,
            "ONWARD_OIDC_ISSUER": provider.issuer,
            "ONWARD_OIDC_CLIENT_ID": provider.client_id,
            "ONWARD_OIDC_CLIENT_SECRET": provider.secret,
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            started = Server(tmp_path_factory.mktemp("stage"), "--port", str(port))
        started.address = address
        yield started
        started.stop()


class Person(Visit):
    """A visit that also goes to the pages of the provider."""

    def check(self) -> None:
        assert self.errors == []
        assert self.page.evaluate("window.__violations") == []

    def sign_in(self, login: str) -> Any:
        page = self.page
        page.get_by_role("link", name="Sign in with localhost").click()
        page.get_by_placeholder("Enter any login").fill(login)
        page.get_by_placeholder("and password").fill("any")
        page.get_by_role("button", name="Sign-in").click()
        page.get_by_role("button", name="Continue").click()
        return page


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Person]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(15_000)
    person = Person(context.new_page(), server.address)
    yield person
    person.check()
    context.close()


def test_a_person_signs_in_is_named_and_signs_out(visit: Person, server: Server) -> None:
    page = visit.go("/queues")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    visit.sign_in("ada")
    expect(page.get_by_role("heading", name="Queues and workers")).to_be_visible()
    assert page.url == f"{server.address}/#/queues", "the page that was requested"
    account = page.get_by_role("button", name="ada@example.com", exact=True)
    expect(account).to_be_visible()
    expect(page.locator(".account .roles")).to_have_text("admin")
    expect(page.get_by_role("button", name="New task")).to_be_visible()
    assert page.evaluate("document.cookie") == "", "no script sees the session"
    page.goto(f"{server.address}/#/system?tab=sessions")
    expect(page.get_by_text("· yours")).to_be_visible()
    account.click()
    page.get_by_role("menuitem", name="Sign out").click()
    expect(page.get_by_role("link", name="Sign in with localhost")).to_be_visible()
    assert [cookie["name"] for cookie in page.context.cookies() if cookie["name"].startswith("onward")] == []


def test_a_narrow_screen_does_not_scroll_sideways_and_has_the_roles_in_the_menu(visit: Person) -> None:
    page = visit.go("/tasks")
    page.set_viewport_size({"width": 400, "height": 800})
    visit.sign_in("ada")
    account = page.get_by_role("button", name="ada@example.com", exact=True)
    expect(account).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    account.click()
    expect(page.locator(".menu-info")).to_have_text("Roles: admin")
    expect(page.get_by_role("menuitem", name="Sign out")).to_be_focused()


def test_a_viewer_sees_no_forbidden_actions(visit: Person, server: Server) -> None:
    page = visit.go("/overview")
    visit.sign_in("vic")
    expect(page.locator(".account .roles")).to_have_text("viewer")
    expect(page.get_by_text("No tasks yet")).to_be_visible()
    expect(page.get_by_text("New task")).to_have_count(0)
    expect(page.get_by_role("link", name="System")).to_have_count(0)
    page.goto(f"{server.address}/#/new")
    expect(page.get_by_text("a person needs the role operator or admin")).to_be_visible()


def test_a_person_without_a_role_reads_why(visit: Person) -> None:
    page = visit.go("/tasks")
    visit.sign_in("eve")
    expect(page.get_by_role("heading", name="You are not signed in")).to_be_visible()
    expect(page.get_by_text("The person eve@example.com has no role here")).to_be_visible()
    page.get_by_role("link", name="Go to the sign-in").click()
    expect(page.get_by_role("link", name="Sign in with localhost")).to_be_visible()
