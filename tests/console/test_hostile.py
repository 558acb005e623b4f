"""Texts of agents, tools and people are shown as text; nothing in them runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.console import stage
from tests.console.conftest import Server, Visit

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]  # one browser at a time

TABS = ["timeline", "conversation", "state", "artifacts", "events", "children", "deliveries"]


def expect(target: Any) -> Any:
    from playwright.sync_api import expect

    return expect(target)


def harmless(page: Any) -> None:
    """No text became an element, no link leads to a script, and no invisible character is left."""
    assert (
        page.evaluate(
            "document.querySelectorAll('main script, main iframe, main object, main svg[onload], main img[onerror]').length"
        )
        == 0
    )
    assert (
        page.evaluate(
            "[...document.querySelectorAll('[href],[src]')].filter((one) => /^\\s*(javascript|data):/i.test(one.getAttribute('href') || one.getAttribute('src'))).length"
        )
        == 0
    )
    assert page.evaluate("/[\\u001b\\u202a-\\u202e\\u2066-\\u2069\\u200b]/.test(document.body.innerText)") is False


@pytest.fixture(scope="module")
def villain(server: Server) -> str:
    task = server.submit("villain", f"{stage.HTML} {stage.BIDI}", labels={stage.HTML[:40]: stage.CLOSING})
    assert server.ended(task)["state"] == "completed"
    return task


@pytest.mark.parametrize("tab", TABS)
def test_hostile_text_of_an_agent(visit: Visit, villain: str, tab: str) -> None:
    page = visit.go(f"/tasks/{villain}?tab={tab}")
    expect(page.locator("h1 .chip")).to_have_text("completed")
    page.wait_for_timeout(300)
    harmless(page)
    if tab in {"conversation", "state"}:
        expect(page.locator("main")).to_contain_text("<script>window.__ran=1</script>")
        expect(page.locator("main")).to_contain_text("\\u202e")
    if tab == "events":
        for event in page.locator(".event").all():
            event.click()
        harmless(page)
    if tab == "timeline":
        for n in range(page.locator(".tl-row:visible").count()):
            page.locator(".tl-row:visible").nth(n).click()
            harmless(page)


def test_only_bytes_that_begin_like_an_image_are_shown_as_one(visit: Visit, server: Server) -> None:
    task = server.submit("gallery", {})
    server.ended(task)
    page = visit.go(f"/tasks/{task}?tab=artifacts")
    expect(page.locator(".artifact")).to_have_count(5)
    shown = page.locator(".artifact", has_text="<img src=x")
    expect(shown).to_have_count(5)
    expect(page.locator(".artifact img")).to_have_count(1)  # the fake is taken away by the browser that cannot read it
    assert page.locator(".artifact img").evaluate("(one) => [one.naturalWidth, one.src.startsWith('blob:')]") == [
        1,
        True,
    ]
    expect(page.locator(".artifact pre.text").filter(has_text="<svg xmlns")).to_be_visible()
    expect(page.locator(".artifact .hex")).to_contain_text("000010")
    harmless(page)


@pytest.mark.parametrize("name", sorted(stage.HOSTILE))
def test_hostile_inputs_keys_labels_errors_and_searches(visit: Visit, server: Server, name: str) -> None:
    text = stage.HOSTILE[name]
    task = server.submit("breaks", {"text": text}, labels={"x": text})
    assert server.ended(task)["state"] == "failed"
    page = visit.go()
    expect(page.locator(f'.task-row[data-id="{task}"]')).to_be_visible()
    harmless(page)
    page.locator("#search").fill(text)
    page.locator("#search").press("Enter")
    page.wait_for_timeout(500)
    harmless(page)
    visit.go(f"/tasks/{task}")
    expect(page.locator(".sentence")).to_contain_text("Failed after")
    harmless(page)


def test_ten_megabytes_are_shown_in_pieces(visit: Visit, server: Server) -> None:
    task = server.submit("breaks", {"text": "x" * 3_000_000 + stage.HTML})
    server.ended(task)
    page = visit.go(f"/tasks/{task}")
    expect(page.locator(".side .value").first).to_be_visible()
    assert page.evaluate("document.querySelector('main').innerText.length") < 30_000
    page.get_by_role("button", name="More", exact=True).last.click()
    harmless(page)


def test_ten_megabytes_in_results_steps_and_artifacts(visit: Visit, server: Server) -> None:
    task = server.submit("swells", None)
    server.ended(task)
    page = visit.go("/tasks")
    row = page.locator(f'.task-row[data-id="{task}"]')
    expect(row).to_contain_text("(not shown in the list)")
    for tab in TABS:
        visit.go(f"/tasks/{task}?tab={tab}")
        expect(page.locator(".sentence")).to_contain_text("Completed")
        harmless(page)
        assert page.evaluate("document.querySelector('main').innerText.length") < 60_000, tab
    visit.go(f"/tasks/{task}?tab=artifacts")
    expect(page.get_by_text("10 MB, not loaded yet")).to_be_visible()
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("not loaded yet")).to_have_count(0)
    harmless(page)
    assert page.evaluate("document.querySelector('main').innerText.length") < 300_000


def test_a_hostile_address_of_a_page(visit: Visit) -> None:
    for where in (
        "/tasks/%3Cscript%3E",
        "/tasks?state=%3Cb%3E&q=%22%3E%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
        "/new?name=%3Cb%3Ex",
        "/nothing/<b>",
        "/tasks/%E0%A4%A",
    ):
        page = visit.go(where)
        page.reload()
        page.wait_for_selector("main > *")
        harmless(page)
        assert json.dumps(page.title())
