"""The console as files: their headers, and their size."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from onward.server.http import console
from tests.console.conftest import Server, Visit

SOURCE = Path(console.__file__).parents[2] / "console"
SCRIPTS = sorted(SOURCE.rglob("*.js"))

pytestmark = pytest.mark.xdist_group("console")  # one server for all tests


def test_the_page_has_a_strict_content_security_policy(server: Server) -> None:
    answer = server.client.get("/")
    policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", answer.text), "no inline scripts"


def test_files_are_revalidated_and_sent_once(server: Server) -> None:
    first = server.client.get("/console/app.js")
    assert first.headers["content-type"].startswith("text/javascript")
    again = server.client.get("/console/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path", ["nothing.js", "../server/http/console.py", "%2e%2e/errors.py", "..%2f..%2ferrors.py", "", "pages"]
)
def test_unknown_files_are_not_found(server: Server, path: str) -> None:
    assert server.client.get(f"/console/{path}").status_code == 404


def test_only_get_is_allowed(server: Server) -> None:
    assert server.client.post("/").status_code == 405
    assert server.client.get("/", headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_uses_html_from_strings(path: Path) -> None:
    text = path.read_text()
    code = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|createContextualFragment|localStorage\.setItem\(\"onward\.key",
        code,
    )
    assert text.startswith("// "), "open a file by teaching it"
    assert len(text.splitlines()) <= 450
    for name in re.findall(r'^(?:import|export) .*? from "([^"]+)"|import\("([^"]+)"\)', code, re.MULTILINE):
        assert "".join(name).startswith("."), "no foreign host"


@pytest.mark.slow
def test_the_first_page_is_small_and_comes_from_here_alone(visit: Visit) -> None:
    sizes: dict[str, int] = {}
    visit.page.on("response", lambda response: sizes.setdefault(response.url, _size(response)))
    page = visit.go()
    page.wait_for_selector(".lamp[data-is=live]")
    page.wait_for_selector("h1:has-text('Tasks')")
    assert sum(sizes.values()) < 200_000, sizes
    assert all(url.startswith(visit.address) for url in sizes)


def _size(response: Any) -> int:
    if "text/event-stream" in response.headers.get("content-type", ""):
        return 0
    return int(response.headers.get("content-length", 0))
