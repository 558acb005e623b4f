"""The console as people use it: submit, watch, filter, control; and a worker that is killed while a person looks."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tests.console.conftest import STAGE, Server, Visit

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]  # one browser at a time


def expect(target: Any) -> Any:
    from playwright.sync_api import expect

    return expect(target)


def row(page: Any, name: str) -> Any:
    return page.locator(".tl-row:visible", has=page.get_by_text(name, exact=True))


def test_a_task_is_submitted_from_the_form_and_its_timeline_grows(visit: Visit, server: Server) -> None:
    page = visit.go("/new")
    page.get_by_role("combobox", name="Task").select_option("rows")
    page.get_by_label("name *").fill("form")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_text("Enter a number.").first).to_be_visible()
    page.get_by_label("count *").fill("3")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("h1", has_text="rows")).to_be_visible()
    server.pass_("form", 0)
    expect(row(page, "row 0")).to_be_visible()
    expect(row(page, "row 1")).to_have_class(re.compile("s-running"))
    server.pass_("form", 1, 2)
    expect(page.locator("h1 .chip")).to_have_text("completed")
    expect(page.locator(".tl-row:visible")).to_have_count(3)


def test_a_form_is_made_of_the_schema_and_can_be_written_as_json(visit: Visit, server: Server) -> None:
    page = visit.go("/new?name=order")
    page.get_by_label("name *").fill("Ada")
    page.get_by_label("sku *").fill("mug")
    page.get_by_label("count", exact=True).fill("10")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_text("At most 9.").first).to_be_visible()
    page.get_by_label("count", exact=True).fill("4")
    page.get_by_role("button", name="Add").click()
    page.get_by_label("sku *").nth(1).fill("lamp")
    page.get_by_label("speed").select_option(label="fast")
    page.get_by_role("button", name="JSON").click()
    text = page.get_by_role("textbox", name="Input *").input_value()
    assert '"sku": "lamp"' in text
    page.get_by_role("textbox", name="Input *").fill(text.replace('"Ada"', '"Bo"'))
    page.get_by_role("button", name="Form").click()
    expect(page.get_by_label("name *")).to_have_value("Bo")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("h1 .chip")).to_have_text("completed")
    made = server.get(page.url.rpartition("/")[2])
    assert made["input"] == {
        "name": "Bo",
        "lines": [{"sku": "mug", "count": 4}, {"sku": "lamp", "count": 1}],
        "speed": "fast",
    }
    assert made["result"]["lines"] == 2


def test_a_worker_is_killed_and_the_crash_and_the_resume_are_marked(visit: Visit, server: Server) -> None:
    task = server.submit("rows", {"name": "crash", "count": 3}, queue="risky")
    page = visit.go(f"/tasks/{task}")
    expect(page.locator("h1 .chip")).to_have_text("queued")
    _, first = server.start("worker", STAGE, "--queues", "risky")
    server.pass_("crash", 0)
    expect(row(page, "row 1")).to_have_class(re.compile("s-running"))
    first.kill()
    first.wait()
    server.start("worker", STAGE, "--queues", "risky")
    expect(page.locator(".tl-flag", has_text="crash, resumed")).to_be_visible(timeout=60_000)
    expect(page.locator(".tl-shift.shift")).to_have_count(2)
    server.pass_("crash", 1, 2)
    expect(page.locator("h1 .chip")).to_have_text("completed")
    expect(page.locator(".tl-shift.shift.killed")).to_have_count(1)
    broken, done = page.locator(".tl-row", has_text="row 1").all()
    expect(broken).to_have_class(re.compile("s-killed"))
    expect(broken.locator(".tl-took")).to_contain_text("interrupted")
    expect(done).to_have_class(re.compile("s-ok"))


def test_a_reload_in_the_middle_of_a_stream_misses_nothing(visit: Visit, server: Server) -> None:
    task = server.submit("rows", {"name": "reload", "count": 4})
    page = visit.go(f"/tasks/{task}")
    server.pass_("reload", 0)
    expect(row(page, "row 0")).to_be_visible()
    page.reload()
    expect(row(page, "row 0")).to_be_visible()
    server.pass_("reload", 1, 2, 3)
    expect(page.locator("h1 .chip")).to_have_text("completed")
    expect(page.locator(".tl-row:visible")).to_have_count(4)


def test_a_deep_link_opens_what_it_names(visit: Visit, server: Server) -> None:
    task = server.submit("order", {"name": "deep", "lines": [{"sku": "mug"}, {"sku": "lamp"}]})
    server.ended(task)
    page = visit.go(f"/tasks/{task}")
    row(page, "pack lamp").click()
    expect(page.locator(".side header h2")).to_have_text("pack lamp")
    expect(page.locator(".side")).to_contain_text("1 × lamp")
    expect(page.locator(".side")).to_contain_text(f"{task}:pack lamp")
    assert "step=" in page.url
    page.reload()
    expect(page.locator(".side header h2")).to_have_text("pack lamp")
    page.get_by_role("tab", name="Events").click()
    page.reload()
    expect(page.get_by_role("tab", name="Events")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".event-kind", has_text="task.completed")).to_be_visible()


def test_a_task_is_cancelled(visit: Visit, server: Server) -> None:
    task = server.submit("pay", {"usd": 5})
    page = visit.go(f"/tasks/{task}")
    expect(page.locator(".sentence")).to_contain_text("Waits for approval of Pay $5?")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Cancel…").click()
    page.get_by_role("button", name="Keep it").click()
    assert server.get(task)["state"] == "waiting"
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Cancel…").click()
    page.get_by_role("button", name="Cancel the task").click()
    expect(page.locator("h1 .chip")).to_have_text("cancelled")


def test_a_task_is_forked_from_a_step_after_a_preview(visit: Visit, server: Server) -> None:
    task = server.submit("order", {"name": "fork", "lines": [{"sku": "mug"}, {"sku": "lamp"}, {"sku": "vase"}]})
    server.ended(task)
    page = visit.go(f"/tasks/{task}")
    row(page, "pack mug").click()
    page.get_by_role("button", name="Fork from here").click()
    expect(page.get_by_role("dialog")).to_contain_text("2 actions of this task would be repeated")
    expect(page.locator(".warn-box li")).to_have_text([re.compile("pack lamp"), re.compile("pack vase")])
    page.get_by_role("button", name="Fork", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("Forked as")
    expect(page.locator(".crumbs")).not_to_contain_text(task[-8:])
    expect(page.locator("h1 .chip")).to_have_text("completed")
    expect(page.locator(".tl-flag", has_text="forked")).to_be_visible()


def test_a_task_is_paused_resumed_prioritized_and_sent_a_message(visit: Visit, server: Server) -> None:
    task = server.submit("pay", {"usd": 6})
    page = visit.go(f"/tasks/{task}")
    expect(page.locator("h1 .chip")).to_have_text("needs approval")
    page.get_by_role("button", name="Message").click()
    page.get_by_role("textbox", name="Message").fill("hurry")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Change the priority…").click()
    page.get_by_role("spinbutton", name="Priority").fill("7")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.locator(".meta")).to_contain_text("priority7")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Pause").click()
    expect(page.locator("h1 .chip")).to_have_text("paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("h1 .chip")).not_to_have_text("paused")
    assert server.get(task)["priority"] == 7


def test_the_list_is_live_and_works_with_the_keyboard(visit: Visit, server: Server) -> None:
    page = visit.go()
    page.wait_for_selector(".lamp[data-is=live]")
    first = server.submit("order", {"name": "one", "lines": []})
    second = server.submit("order", {"name": "two", "lines": []})
    top = page.locator(".task-row").nth(0)
    expect(top).to_have_attribute("data-id", second)
    expect(top.locator(".chip")).to_have_text("completed")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(".task-row.chosen")).to_have_attribute("data-id", first)
    page.keyboard.press("k")
    expect(page.locator(".task-row.chosen")).to_have_attribute("data-id", second)
    page.keyboard.press("Enter")
    expect(page.locator(".crumbs")).to_contain_text(second[-8:])
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()


def test_filters_are_combined_kept_in_the_address_and_searched_with_a_text(visit: Visit, server: Server) -> None:
    ended = server.submit("order", {"name": "filter-a", "lines": []}, labels={"team": "filter"})
    failed = server.submit("breaks", {"text": "filter-b"}, labels={"team": "filter"})
    asks = server.submit("pay", {"usd": 8}, labels={"team": "filter"})
    server.ended(ended)
    server.ended(failed)
    page = visit.go("/tasks?label=team:filter")

    def shown(*tasks: str) -> None:
        expect(page.locator(".task-row")).to_have_count(len(tasks))
        assert {row.get_attribute("data-id") for row in page.locator(".task-row").all()} == set(tasks)

    shown(ended, failed, asks)
    expect(page.locator(".total")).to_have_text("3")
    page.locator("details[data-name=state] summary").click()
    page.get_by_role("checkbox", name="failed").click()
    shown(failed)
    expect(page.get_by_role("checkbox", name="failed")).to_be_focused()
    page.get_by_role("checkbox", name="waiting").click()
    shown(failed, asks)
    assert "state=failed&state=waiting" in page.url
    page.reload()
    shown(failed, asks)
    page.locator("#search").fill("FILTER-B")
    shown(failed)
    page.go_back()
    shown(failed, asks)
    expect(page.locator(".task-row .why").first).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".task-row").nth(3)).to_be_visible()
    page.locator("#search").fill(asks[-8:])
    shown(asks)
    expect(page.locator(".task-row .c-state")).to_contain_text("Pay $8?")


def test_a_row_gives_a_reason_beyond_its_chip(visit: Visit, server: Server) -> None:
    failed = server.submit("snaps", {}, labels={"team": "why"})
    poor = server.submit("poor", "Spend all of it.", labels={"team": "why"})
    server.ended(failed)
    page = visit.go("/tasks?label=team:why")
    expect(page.locator(f'.task-row[data-id="{failed}"] .why')).to_have_text("charge: OSError: no network")
    expect(page.locator(f'.task-row[data-id="{poor}"] .why')).to_contain_text("steps: it needs 1, and 0 of 1 are left")
    page = visit.go(f"/tasks/{poor}")
    expect(page.locator(".sentence")).to_have_text(
        "The budget has not enough steps for the next call: it needs 1, and 0 of 1 are left. Raise the budget to continue the task."
    )


def test_all_matching_tasks_are_cancelled_after_a_count(visit: Visit, server: Server) -> None:
    tasks = [server.submit("pay", {"usd": n}, labels={"batch": "7"}) for n in range(3)]
    other = server.submit("pay", {"usd": 99}, labels={"batch": "8"})
    page = visit.go("/tasks")
    page.get_by_role("button", name="Bulk actions").click()
    expect(page.get_by_role("menuitem", name="Cancel all matching…")).to_be_disabled()
    page.keyboard.press("Escape")
    visit.go("/tasks?label=batch:7")
    expect(page.locator(".task-row")).to_have_count(3)
    page.get_by_role("button", name="Bulk actions").click()
    page.get_by_role("menuitem", name="Cancel all matching…").click()
    page.get_by_role("button", name="Cancel 3 tasks").click()
    expect(page.locator(".toast")).to_contain_text("Done with 3 of 3.")
    expect(page.locator(".task-row .chip", has_text="cancelled")).to_have_count(3)
    assert [server.get(task)["state"] for task in (*tasks, other)] == ["cancelled"] * 3 + ["waiting"]


def test_a_task_is_pruned(visit: Visit, server: Server) -> None:
    task = server.submit("order", {"name": "forget me", "lines": []})
    server.ended(task)
    page = visit.go(f"/tasks/{task}")
    page.get_by_role("button", name="More", exact=True).first.click()
    page.get_by_role("menuitem", name="Delete…").click()
    page.get_by_role("button", name="Delete the task").click()
    expect(page.get_by_role("dialog")).to_contain_text("try again in a minute")
    with closing(sqlite3.connect(server.db.removeprefix("sqlite:///"), timeout=60)) as connection, connection:
        connection.execute("UPDATE onward_outcomes SET finished_at = finished_at - 100 WHERE task_id = ?", (task,))
    page.get_by_role("button", name="Delete the task").click()
    expect(page.locator(".toast")).to_contain_text("1 task deleted")
    page.wait_for_url("**#/tasks")
    visit.go(f"/tasks/{task}")
    expect(page.get_by_text(re.compile("there is no task", re.IGNORECASE))).to_be_visible()


def test_the_stream_is_closed_while_the_tab_is_hidden(visit: Visit, server: Server) -> None:
    visit.page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => window.__away === true })")
    page = visit.go()
    page.wait_for_selector(".lamp[data-is=live]")
    page.evaluate("window.__away = true; document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector(".lamp[data-is=paused]")
    task = server.submit("order", {"name": "unseen", "lines": []})
    server.ended(task)
    assert page.locator(f'.task-row[data-id="{task}"]').count() == 0
    page.evaluate("window.__away = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator(f'.task-row[data-id="{task}"]')).to_be_visible()


def test_ten_thousand_records_are_a_handful_of_rows(visit: Visit, server: Server) -> None:
    task = server.submit("many", {"count": 10_000})
    server.ended(task)
    page = visit.go(f"/tasks/{task}")
    expect(page.locator(".tl-count")).to_have_text("10,000 rows")
    assert page.locator(".tl-row").count() < 80
    page.locator(".tl-rows").evaluate("(box) => (box.scrollTop = box.scrollHeight)")
    expect(row(page, "record 9999")).to_be_visible()
    assert page.locator(".tl-row").count() < 80
    page.get_by_label("Filter steps by name").fill("record 777")
    expect(page.locator(".tl-count")).to_have_text("11 of 10,000")
