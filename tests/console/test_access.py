"""Keys in the console, and the console under a prefix."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.console.conftest import Server, Visit

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]  # one browser at a time


def expect(target: Any) -> Any:
    from playwright.sync_api import expect

    return expect(target)


@pytest.fixture(scope="module")
def keys(server: Server) -> dict[str, str]:
    """A key for each role of the tests; from here on the server needs one."""
    task = server.submit("order", {"name": "before", "lines": [{"sku": "mug"}]})
    server.ended(task)

    def make(name: str, scopes: str, tenant: str = "") -> str:
        command = [sys.executable, "-m", "onward", "keys", "create", "--name", name, "--scope", scopes, "--json"]
        command += ["--tenant", tenant] if tenant else []
        output = subprocess.run(command, env=server.env, capture_output=True, text=True, check=True).stdout
        token = re.search(r"onw_\w+", output)
        assert token, output
        return token[0]

    made = {"all": make("Ada", "admin,read,submit,decide"), "read": make("Bo", "read"), "task": task}
    made["acme"] = make("Acme", "read,submit", "acme")
    made |= {"kim": make("Kim", "read,decide"), "lin": make("Lin", "read,decide")}
    server.client.headers["Authorization"] = f"Bearer {made['all']}"
    return made


def test_a_key_is_asked_for_and_only_ever_sent_as_a_header(visit: Visit, keys: dict[str, str]) -> None:
    page = visit.go(f"/tasks/{keys['task']}")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_role("textbox", name="Key").fill("onw_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("The server does not know this key.")).to_be_visible()
    page.get_by_role("textbox", name="Key").fill(keys["all"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("h1 .chip")).to_have_text("completed")
    page.wait_for_selector(".lamp[data-is=live]")
    secret = keys["all"]
    assert all(secret not in request.url for request in visit.requests)
    stream = [request for request in visit.requests if "/api/progress" in request.url][-1]
    assert stream.headers["authorization"] == f"Bearer {secret}"
    assert page.evaluate("sessionStorage.getItem('onward.key')") == secret
    assert page.evaluate("JSON.stringify({...localStorage}) + document.cookie").find(secret) == -1
    page.reload()
    expect(page.locator("h1 .chip")).to_have_text("completed")
    page.get_by_role("button", name="Ada").click()
    page.get_by_role("menuitem", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_key_with_only_read_sees_no_actions(visit: Visit, keys: dict[str, str]) -> None:
    page = visit.go(f"/tasks/{keys['task']}")
    page.get_by_role("textbox", name="Key").fill(keys["read"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("h1 .chip")).to_have_text("completed")
    assert page.get_by_role("button", name="More").count() == 0
    visit.go("/new")
    expect(page.get_by_text("To submit tasks, a key needs the scope submit.")).to_be_visible()


def test_an_approval_with_two_votes(visit: Visit, keys: dict[str, str], server: Server) -> None:
    task_id = server.submit("wire", {"usd": 7})  # with Ada's key
    page = visit.go("/inbox")

    def sign_in(who: str) -> None:
        page.get_by_role("textbox", name="Key").fill(keys[who])
        page.get_by_role("button", name="Sign in").click()
        page.locator(".inbox-row", has_text="wire").click()

    def sign_out(name: str) -> None:
        page.get_by_role("button", name=name).click()
        page.get_by_role("menuitem", name="Sign out").click()

    sign_in("all")
    expect(page.locator(".ask-votes")).to_contain_text("0 of 2 votes so far")
    assert page.get_by_role("button", name="Change").count() == page.locator("label.always").count() == 0
    page.get_by_role("button", name="Approve").click()
    expect(page.locator(".ask-body .form-trouble")).to_contain_text("asked for it")
    sign_out("Ada")
    sign_in("kim")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("Your vote counts: 1 of 2")).to_be_visible()
    expect(page.locator(".ask-votes")).to_contain_text("1 of 2 votes so far")
    expect(page.locator(".ask-votes li")).to_contain_text("Kim approved")
    sign_out("Kim")
    sign_in("lin")
    page.get_by_role("button", name="Approve").click()
    assert server.ended(task_id)["result"] == "wired"
    expect(page.get_by_text("No approvals or questions are waiting")).to_be_visible()


def test_the_number_at_the_inbox_counts_what_the_caller_sees(
    visit: Visit, keys: dict[str, str], server: Server
) -> None:
    """`/api/stats` counts the approvals of all tenants; a key without a tenant and without admin does not see those."""
    headers = {"Authorization": f"Bearer {keys['acme']}"}
    answer = server.client.post("/api/tasks", json={"task": "wire", "input": {"usd": 8}}, headers=headers)
    task_id = answer.json()["task_id"]
    while server.get(task_id)["reason"] != "approval":
        time.sleep(0.02)
    page = visit.go("/inbox")
    page.get_by_role("textbox", name="Key").fill(keys["kim"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("No approvals or questions are waiting")).to_be_visible()
    while not page.evaluate(  # the page allows no eval, which `wait_for_function` needs
        "performance.getEntriesByType('resource').some((entry) => entry.name.endsWith('/api/stats'))"
    ):
        page.wait_for_timeout(20)
    expect(page.locator(".rail-count.tone-wait")).to_have_count(0)
    server.client.post(f"/api/tasks/{task_id}/cancel")


MOUNTED = """
import asyncio, contextlib, socket, uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.console.stage import app

@contextlib.asynccontextmanager
async def lifespan(_):
    async with app, app.worker():
        yield

bound = socket.socket()
bound.bind(("127.0.0.1", 0))
bound.listen()
print(f" ready: http://127.0.0.1:{bound.getsockname()[1]}/deep/ops", flush=True)
server = uvicorn.Server(uvicorn.Config(Starlette(routes=[Mount("/deep/ops", app.asgi(keyless=True))], lifespan=lifespan), log_level="error"))
asyncio.run(server.serve([bound]))
"""


@pytest.fixture
def mounted(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    folder = tmp_path_factory.mktemp("mounted")
    (folder / "mounted.py").write_text(MOUNTED)
    process_server = Server.__new__(Server)
    process_server.folder, process_server._processes = folder, []
    process_server.env = {
        **os.environ,
        "ONWARD_DB": f"sqlite:///{folder}/m.db",
        "STAGE": str(folder),
        "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}{os.pathsep}{os.getcwd()}",
    }
    address, _ = process_server.start(module="mounted")
    context = browser.new_context()
    context.set_default_timeout(15_000)
    visit = Visit(context.new_page(), address)
    yield visit
    visit.check()
    context.close()
    process_server.stop()


def test_it_works_under_a_prefix(mounted: Visit) -> None:
    page = mounted.go("/new?name=order")
    page.get_by_label("name *").fill("Ada")
    page.get_by_label("sku *").fill("mug")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("h1 .chip")).to_have_text("completed")
    page.wait_for_selector(".lamp[data-is=live]")
    page.reload()
    expect(page.locator(".tl-row:visible")).to_have_count(1)
