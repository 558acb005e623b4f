"""The pages about the whole system as people use them: decide, answer, pause, trigger, send again, create and revoke keys."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.console.conftest import Server, Visit
from tests.console.desk import HOSTILE, Receiver, buried, made

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]  # one browser at a time

DESK = "tests.console.desk:app"


def expect(target: Any) -> Any:
    from playwright.sync_api import expect

    expect.set_options(timeout=20_000)  # a machine with much to do takes its time
    return expect(target)


class Desk(Server):
    """The same server with another app, perhaps behind keys."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.db = folder, f"sqlite:///{folder}/stage.db"
        self.env = {**os.environ, "ONWARD_DB": self.db}
        self._processes: list[subprocess.Popen[str]] = []
        self.address, _ = self.start("serve", DESK, "--port", "0")
        self.client = httpx2.Client(base_url=self.address, timeout=60)

    def keep(self, token: str) -> None:
        """Ask with this key from now on."""
        self.client = httpx2.Client(base_url=self.address, timeout=60, headers={"Authorization": f"Bearer {token}"})

    def all(self, path: str, name: str, **query: Any) -> list[dict[str, Any]]:
        answer = self.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        items: list[dict[str, Any]] = answer.json()[name]
        return items

    def open_ask(self, task_id: str, kind: str = "approvals") -> dict[str, Any]:
        """The open approval or question of a task, as soon as there is one."""
        for _ in range(400):
            for ask in self.all(f"/api/{kind}", kind):
                if ask["task_id"] == task_id:
                    return ask
        raise AssertionError(f"{task_id} asks nothing")

    def second_turn(self, task_id: str) -> str:
        """The messages of the second turn of an agent: they contain the results of its calls."""
        answer = self.client.get(f"/api/tasks/{task_id}/turns/2")
        assert answer.status_code == 200, answer.text
        return json.dumps(answer.json()["messages"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One server with a worker for all queues."""
    desk = Desk(tmp_path_factory.mktemp("desk"))
    yield desk
    desk.stop()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.close()


def title(page: Any) -> Any:
    return page.locator(".ask-title")


def gone(page: Any, ask: dict[str, Any]) -> None:
    expect(page.locator(f'.inbox-row[data-id="{ask["id"]}"]')).to_have_count(0)


def cut(page: Any, selector: str) -> list[str]:
    """The texts of elements that have no room for what they contain."""
    texts: list[str] = page.locator(selector).evaluate_all(
        "all => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    )
    return texts


def test_a_window_of_1280_pixels_cuts_no_buttons_links_and_queues(visit: Visit, server: Desk) -> None:
    server.ended(server.submit("digest.all", {"pages": 7}))
    delayed = server.submit("echo", 1, queue="nightly", delay_s=3600)
    page = visit.go("/tasks")
    expect(page.locator(".task-row.group")).to_contain_text("7 × digest.one")
    expect(page.locator(".c-queue", has_text="nightly")).to_be_visible()
    assert cut(page, ".group .brief, .c-queue") == []
    page = visit.go("/queues")
    expect(page.locator(".table-box").first).to_contain_text("nightly")
    assert cut(page, ".table-box") == []
    server.client.post(f"/api/tasks/{delayed}/cancel")


# ── the inbox ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_approval_appears_live_with_its_exact_arguments_and_is_approved(visit: Visit, server: Desk) -> None:
    page = visit.go("/inbox")
    expect(page.get_by_text("No approvals or questions are waiting")).to_be_visible()
    task_id = server.submit("support.reply", "Where is her order?")
    page.get_by_role("option", name=re.compile("send_email")).click()
    expect(title(page)).to_have_text("Call send_email?")
    expect(page.locator(".rail-count.tone-wait")).to_have_text("1")
    shown = page.locator(".given")
    expect(shown).to_contain_text("As a small apology we have credited your account with 15.00.")
    expect(shown).to_contain_text('"X-Ticket": "4100"')
    expect(page.get_by_text("risk: external_action")).to_be_visible()
    expect(page.get_by_text("and is then denied")).to_be_visible()
    expect(page.locator(".ask-why")).to_contain_text(
        "The courier had the wrong address, and the parcel is on its way now."
    )
    expect(page.locator(".ask-why")).to_contain_text("It cannot be taken back.")
    expect(page.locator(".ask-context .bubble.user")).to_contain_text("Where is her order?")
    expect(page.locator(".ask-context")).to_contain_text("Where is her order?")
    digest = server.open_ask(task_id)["digest"]
    expect(page.locator(".ask-body")).to_contain_text(f"Digest {digest[:16]}")
    page.get_by_role("button", name="Approve", exact=True).click()
    expect(page.get_by_text("Approved: send_email")).to_be_visible()
    assert server.ended(task_id)["result"] == "The customer was told."
    records = server.client.get(f"/api/tasks/{task_id}/events").json()["records"]
    (decision,) = [
        value for record in records if isinstance(value := record["data"].get("value"), dict) and "digest" in value
    ]
    assert (decision["digest"], decision["named"]) == (digest, True), (
        "the page has sent the digest of the action that it showed"
    )
    expect(page.get_by_text("No approvals or questions are waiting")).to_be_visible()
    expect(page.locator(".rail-count.tone-wait")).to_have_count(0)


def test_a_task_is_decided_on_its_own_page(visit: Visit, server: Desk) -> None:
    task_id = server.submit("support.reply", "Where is her order?")
    ask = server.open_ask(task_id)
    page = visit.go(f"/tasks/{task_id}?tab=conversation")
    card = page.locator(f'.asks [data-ask="{ask["id"]}"]')
    expect(card).to_contain_text("The courier had the wrong address")
    expect(card.locator(".given")).to_contain_text('"X-Ticket": "4100"')
    line = page.locator(".bubble.waiting")
    expect(line).to_contain_text("Waits for approval")
    line.get_by_role("button", name="Decide").click()
    card.get_by_role("button", name="Approve", exact=True).click()
    expect(card).to_have_count(0)
    expect(line).to_have_count(0)
    assert server.ended(task_id)["result"] == "The customer was told."


def test_many_children_are_one_row_that_opens(visit: Visit, server: Desk) -> None:
    task_id = server.submit("digest.all", {"pages": 12})
    assert server.ended(task_id)["result"] == 66
    page = visit.go("/tasks?name=digest.one")
    group = page.get_by_role("button", name=re.compile("12 children digest.one"))
    expect(group).to_have_attribute("aria-expanded", "false")
    expect(page.locator(".task-row")).to_have_count(1)
    group.click()
    expect(page.locator(".task-row")).to_have_count(13)
    expect(page.get_by_text("page: 7", exact=True)).to_be_visible()
    visit.go(f"/tasks/{task_id}")
    row = page.locator(".tl-row:visible", has_text="12 × digest.one")
    expect(row).to_contain_text("12 done")
    expect(page.locator(".tl-row.k-child:visible")).to_have_count(0)
    row.click()
    expect(page.locator(".tl-row.k-child:visible")).to_have_count(12)
    tabs = page.locator(".tab:visible")
    expect(tabs).to_have_text([re.compile("Timeline"), re.compile("Events"), re.compile("Children")])


def test_the_overview_has_a_time_axis(visit: Visit, server: Desk) -> None:
    page = visit.go("/overview?span=day")
    expect(page.locator(".history-chart")).to_have_count(5)
    expect(page.locator(".history-chart", has_text="Throughput").get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("Throughput in the last day: .* ended")
    )
    page.get_by_role("link", name="Hour", exact=True).click()
    expect(page.locator(".history-chart").first.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("in the last hour")
    )


def test_a_large_approval_is_read_as_a_whole_before_it_can_be_given(visit: Visit, server: Desk) -> None:
    """The list has no room for it."""
    task_id = server.submit("print_book", {"size": 5_000_000})
    ask = server.open_ask(task_id)
    assert ask["digest"] is None
    page = visit.go(f"/inbox?id={ask['id']}")
    expect(title(page)).to_have_text("Print this book?")
    digest = server.client.get(f"/api/approvals/{ask['id']}").json()["digest"]
    expect(page.locator(".ask-body")).to_contain_text(f"Digest {digest[:16]}")
    page.get_by_role("button", name="Approve", exact=True).click()
    gone(page, ask)
    assert server.ended(task_id)["result"] == "printed"


def test_the_state_of_a_task_does_not_cover_its_name(visit: Visit, server: Desk) -> None:
    ask = server.open_ask(server.submit("support.reply", "Where is her order?"))
    page = visit.go("/")
    row = page.locator(".rows li", has=page.locator("b", has_text="support.reply")).filter(has_text="needs approval")
    expect(row).to_be_visible()
    state, name = row.locator(".standing > *").bounding_box(), row.locator("b").bounding_box()
    assert state["x"] + state["width"] <= name["x"]
    assert server.client.post(f"/api/approvals/{ask['id']}", json={"decision": "deny"}).is_success


def test_a_denial_with_a_reason_by_keyboard(visit: Visit, server: Desk) -> None:
    task_id = server.submit("support.reply", "Where is his order?")
    ask = server.open_ask(task_id)
    page = visit.go(f"/inbox?id={ask['id']}")
    expect(title(page)).to_be_visible()
    page.keyboard.press("d")
    page.get_by_label("Reason").fill("he never wrote to us")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    gone(page, ask)
    server.ended(task_id)
    assert "he never wrote to us" in server.second_turn(task_id)
    assert "sent " not in server.second_turn(task_id)


def test_arguments_are_edited_as_fields_and_as_json(visit: Visit, server: Desk) -> None:
    task_id = server.submit("support.reply", "Where is their order?")
    ask = server.open_ask(task_id)
    page = visit.go(f"/inbox?id={ask['id']}")
    expect(title(page)).to_be_visible()
    page.keyboard.press("e")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Approve as changed").click()
    expect(dialog.get_by_text("No argument was changed.")).to_be_visible()
    dialog.get_by_label("subject").fill("About A-1042")
    dialog.get_by_label("to", exact=True).fill("[")
    dialog.get_by_role("button", name="Approve as changed").click()
    expect(dialog.get_by_text("This is not JSON.")).to_be_visible()
    dialog.get_by_label("to", exact=True).fill('["x@example.com"]')
    dialog.get_by_role("button", name="All as JSON").click()
    whole = dialog.get_by_label("Arguments")
    assert '"subject": "About A-1042"' in whole.input_value()
    whole.fill(whole.input_value().replace('"x@', '"y@').replace('"retries"', '"retries!"'))
    dialog.get_by_role("button", name="Approve as changed").click()
    gone(page, ask)
    server.ended(task_id)
    assert "sent 'About A-1042' to y@example.com" in server.second_turn(task_id)


def test_invalid_changed_arguments_are_refused_with_a_message(visit: Visit, server: Desk) -> None:
    task_id = server.submit("support.reply", "One more.")
    ask = server.open_ask(task_id)
    page = visit.go(f"/inbox?id={ask['id']}")
    expect(title(page)).to_be_visible()
    page.keyboard.press("e")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("to", exact=True).fill("5")
    dialog.get_by_role("button", name="Approve as changed").click()
    expect(dialog.locator(".form-trouble")).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert server.client.post(f"/api/approvals/{ask['id']}", json={"decision": "deny"}).status_code == 200
    expect(page.get_by_text("This is no longer open")).to_be_visible()


def test_always_decides_the_other_open_call(visit: Visit, server: Desk) -> None:
    task_id = server.submit("support.twice", "Pay both back.")
    ask = server.open_ask(task_id)
    page = visit.go(f"/inbox?id={ask['id']}")
    page.get_by_label("always for refund in this task").check()
    page.get_by_role("button", name="Approve", exact=True).click()
    assert server.ended(task_id)["result"] == "Both were paid back."
    gone(page, ask)


def test_a_double_click_decides_one_ask_and_the_open_ask_stays(visit: Visit, server: Desk) -> None:
    later = server.submit("support.twice", "Pay both back.")
    server.open_ask(later)
    page = visit.go("/inbox")
    expect(title(page)).to_have_text("Call refund?")
    sooner = server.submit("support.reply", "Where is it?")
    expect(page.locator(".inbox-row").first).to_contain_text("send_email")
    expect(title(page)).to_have_text("Call refund?")
    page.get_by_role("button", name="Approve", exact=True).dblclick()
    expect(page.locator(".inbox-row")).to_have_count(2)
    expect(page.locator(".inbox-detail:not([inert])")).to_be_visible()
    asks = server.all("/api/approvals", "approvals")
    assert sorted(open_ask["task"] for open_ask in asks) == ["support.reply", "support.twice"]
    for ask in asks:
        server.client.post(f"/api/approvals/{ask['id']}", json={"decision": "deny", "hash": ask["hash"]})
    assert {server.ended(later)["state"], server.ended(sooner)["state"]} == {"completed"}


def test_the_first_to_expire_is_on_top_and_j_and_k_move(visit: Visit, server: Desk) -> None:
    tasks = [
        server.submit("seller.describe", {"seller": "A"}),
        server.submit("seller.onboard", {"seller": "B & C"}),
        server.submit("payout.run", {"batch": "B-1", "usd": 5.0}),
    ]
    asks = [server.open_ask(tasks[0], "questions"), server.open_ask(tasks[1], "questions"), server.open_ask(tasks[2])]
    page = visit.go("/inbox")
    rows = page.locator(".inbox-row")
    expect(rows).to_have_count(3)
    assert [row.get_attribute("data-id") for row in rows.all()] == [ask["id"] for ask in reversed(asks)]
    expect(title(page)).to_contain_text("Pay batch B-1")
    page.keyboard.press("j")
    expect(title(page)).to_contain_text("Which plan does B & C get?")
    page.get_by_role("button", name="Growth").click()
    assert server.ended(tasks[1])["result"] == "Growth"
    expect(title(page)).to_contain_text("How would you describe A")
    expect(page.locator(".inbox-detail:not([inert])")).to_be_visible()
    page.keyboard.press("k")
    expect(title(page)).to_contain_text("Pay batch B-1")
    page.reload()
    expect(title(page)).to_contain_text("Pay batch B-1")
    page.keyboard.press("a")
    assert server.ended(tasks[2])["result"] == "paid B-1"
    expect(title(page)).to_contain_text("How would you describe A")
    page.get_by_label("Your answer").fill("Small, and <b>proud</b>.")
    page.get_by_role("button", name="Answer").click()
    assert server.ended(tasks[0])["result"] == "Small, and <b>proud</b>."


def test_an_effect_in_doubt_is_resolved(visit: Visit, server: Desk) -> None:
    task_id = server.submit("transfer", {"to": "Old Mill"})
    page = visit.go("/inbox")
    page.get_by_role("option", name=re.compile("wire money to Old Mill")).click()
    expect(page.get_by_text("the bank did not answer within 30 s")).to_be_visible()
    page.get_by_role("button", name="It did not happen").click()
    expect(page.get_by_role("dialog")).to_contain_text("it would happen twice")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="It happened").click()
    page.get_by_label("Result").fill("tr_9")
    page.get_by_role("dialog").get_by_role("button", name="It happened").click()
    expect(page.get_by_text("This is not JSON.")).to_be_visible()
    page.get_by_label("Result").fill('"tr_9"')
    page.get_by_role("dialog").get_by_role("button", name="It happened").click()
    assert server.ended(task_id)["result"] == "tr_9"
    expect(page.get_by_text("No approvals or questions are waiting")).to_be_visible()


# ── queues, schedules, deliveries ────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_is_paused_drained_and_unpaused(visit: Visit, server: Desk) -> None:
    held = [server.submit("render.frame", {"frame": n}, queue="gpu") for n in range(4)]
    page = visit.go("/queues")
    gpu = page.get_by_role("row", name=re.compile("^gpu"))
    expect(gpu).to_contain_text("at its limit")
    expect(gpu).to_contain_text("2 of 2")
    expect(page.locator(".holds")).to_contain_text("render.frame")
    gpu.get_by_role("button", name="Pause queue gpu").click()
    expect(page.get_by_role("dialog")).to_contain_text("2 running tasks go on to the end")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(gpu).to_contain_text("draining: 2 running")
    assert [queue["paused"] for queue in server.all("/api/queues", "queues") if queue["name"] == "gpu"] == [True]
    gpu.get_by_role("button", name="Unpause queue gpu").click()
    expect(gpu).to_contain_text("at its limit")
    for task_id in held:
        server.client.post(f"/api/tasks/{task_id}/cancel")


def test_a_schedule_is_triggered_paused_and_unpaused(visit: Visit, server: Desk) -> None:
    page = visit.go("/schedules")
    digest = page.get_by_role("row", name=re.compile("^digest"))
    expect(digest).to_contain_text("0 8 * * mon")
    expect(digest).to_contain_text("Europe/Berlin")
    expect(digest).to_contain_text("then")
    digest.get_by_role("button", name="Trigger digest now").click()
    page.get_by_role("dialog").get_by_role("button", name="Trigger now").click()
    expect(digest).to_contain_text("completed")
    assert [task["input"] for task in server.all("/api/tasks", "tasks", label="schedule:digest")] == [{"team": "red"}]
    digest.get_by_role("button", name="Pause digest").click()
    expect(digest).to_contain_text("paused")
    digest.get_by_role("button", name="Unpause digest").click()
    expect(digest).not_to_contain_text("paused")


def test_events_are_subscribed_to_sent_and_sent_again(visit: Visit, server: Desk, receiver: Receiver) -> None:
    page = visit.go("/deliveries")
    page.get_by_role("button", name="Subscribe…").click()
    page.get_by_label("URL").fill(f"{receiver.address}/ok")
    page.get_by_label("Events").fill("task.completed")
    page.get_by_role("dialog").get_by_role("button", name="Subscribe").click()
    assert page.get_by_label("The secret", exact=True).input_value().startswith("whsec_")
    page.get_by_role("button", name="I have saved it").click()
    server.ended(server.submit("echo", "hear this"))
    row = page.get_by_role("row", name=re.compile("task.completed")).first
    expect(row).to_contain_text("HTTP 204")
    assert receiver.seen.count("/ok") == 1
    row.get_by_role("button", name=re.compile("^Send task.completed")).click()
    expect(page.get_by_text("It will be sent again")).to_be_visible()
    for _ in range(400):
        if receiver.seen.count("/ok") > 1:
            break
        page.wait_for_timeout(50)
    assert receiver.seen.count("/ok") == 2
    expect(row).to_contain_text("delivered")
    page.get_by_role("link", name="Failed").click()
    expect(page.get_by_text("No delivery matches")).to_be_visible()
    assert "state=failed" in page.url
    page.get_by_role("tab", name="Subscriptions").click()
    page.get_by_role("button", name=re.compile("^Remove the subscription")).click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No subscriptions")).to_be_visible()


def test_dead_letters_are_looked_at_redriven_and_dropped(visit: Visit, server: Desk) -> None:
    with ThreadPoolExecutor(1) as aside:  # Playwright has a loop in this thread
        aside.submit(buried, server.db).result()
    page = visit.go("/intakes")
    orders = page.get_by_role("region", name="Intakes").get_by_role("row", name=re.compile("^orders"))
    expect(orders).to_contain_text("shop/ORDERS → echo")
    expect(orders).to_contain_text("1 waiting")
    expect(page.get_by_role("row", name=re.compile("broker shop does not answer"))).to_contain_text("away")
    page.get_by_role("link", name="3 dead letters of orders").click()
    table = page.get_by_role("region", name="Dead letters")
    expect(table.get_by_role("row")).to_have_count(4)
    row = table.get_by_role("row", name=re.compile("A-1042"))
    row.get_by_role("button", name=re.compile("^Look at")).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("region", name="Body")).to_contain_text('"amount": 15.0')
    expect(dialog.get_by_role("region", name="Headers")).to_contain_text("application/json")
    dialog.get_by_role("button", name="Redrive").click()
    expect(row).to_contain_text("to be redriven")
    row.get_by_role("button", name=re.compile("^Drop dead letter")).click()
    expect(dialog).to_contain_text("deleted for good")
    dialog.get_by_role("button", name="Drop", exact=True).click()
    expect(table.get_by_role("row")).to_have_count(3)
    page.get_by_role("button", name="Redrive all…").click()
    dialog.get_by_role("button", name="Redrive").click()
    expect(page.get_by_text("2 dead letters to be tried again")).to_be_visible()
    page.locator("a.only").click()
    page.get_by_role("button", name="Drop all…").click()
    dialog.get_by_role("button", name="Drop 3 dead letters").click()
    expect(page.get_by_text("Every message became a task.")).to_be_visible()
    assert server.all("/api/dead-letters", "letters") == []
    actions = [entry["action"] for entry in server.all("/api/audit", "entries") if "letters" in entry["action"]]
    assert actions == ["redrive_letters", "drop_letters", "redrive_letters", "drop_letters"]


def test_an_unknown_price_is_shown_as_unknown(visit: Visit, server: Desk) -> None:
    for name in ("priced.thinker", "free.thinker", "free.thinker"):
        server.ended(server.submit(name, "Think."))
    page = visit.go("/usage")
    priced, free = (
        page.get_by_role("row", name=re.compile("^priced.thinker")),
        page.get_by_role("row", name=re.compile("^free.thinker")),
    )
    expect(priced).to_contain_text(re.compile(r"\$0\.00\d\d"))
    expect(free).to_contain_text("unknown")
    expect(free).to_contain_text("2 tasks")
    expect(free).not_to_contain_text("$0")
    expect(page.locator(".bars li", has_text="free.thinker")).to_contain_text("unknown")
    expect(page.locator(".tile", has_text="Cost")).to_contain_text("≥ $")
    page.get_by_role("link", name="Model").click()
    expect(page.get_by_role("row", name=re.compile("^house-model"))).to_contain_text("2 calls")
    page.get_by_role("link", name="Tokens", exact=True).click()
    page.get_by_role("link", name="Day", exact=True).click()
    expect(page.locator(".days li")).to_have_count(1)
    assert "by=day" in page.url
    assert "measure=tokens" in page.url
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as CSV").click()
    lines = Path(saved.value.path()).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "group,tasks,calls,tokens_in,tokens_out,usd,unknown"
    assert len(lines) == 2


def test_the_page_of_the_system(visit: Visit, server: Desk) -> None:
    server.client.post(f"/api/tasks/{server.submit('echo', 'audited')}/pause")
    checks = server.client.get("/api/system").json()["checks"]
    problems = [check["name"] for check in checks if check["fine"] is False]
    assert set(problems) <= {"intake mail"}, "the test of dead letters leaves an intake whose broker is away"
    page = visit.go("/system")
    expect(page.locator(".tile", has_text="Health")).to_contain_text("1 problem" if problems else "no problem")
    expect(page.locator(".tile", has_text="Store")).to_contain_text("SQLite")
    expect(page.locator(".findings")).to_contain_text("none is stuck of those looked at")
    expect(page.locator(".facts")).to_contain_text("webhook_secret")
    expect(page.locator(".facts")).not_to_contain_text("whsec_")
    page.get_by_role("tab", name="Audit").click()
    expect(page.get_by_role("region", name="Audit")).to_be_visible()
    page.reload()
    expect(page.get_by_role("tab", name="Audit")).to_have_attribute("aria-selected", "true")


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def key(server: Desk, name: str, *scopes: str, tenant: str | None = None) -> str:
    answer = server.client.post("/api/keys", json={"name": name, "scopes": scopes, "tenant": tenant})
    assert answer.status_code == 201, answer.text
    token: str = answer.json()["token"]
    return token


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A server that wants keys."""
    desk = Desk(tmp_path_factory.mktemp("locked"))
    desk.keep(key(desk, "boss", "read", "submit", "decide", "admin"))
    yield desk
    desk.stop()


@pytest.fixture
def stranger(browser: Any, locked: Desk) -> Iterator[Visit]:
    """A visitor who has to sign in."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(15_000)
    opened = Visit(context.new_page(), locked.address)
    yield opened
    if opened.page.url.startswith("http"):
        opened.check()
    context.close()


def signed_in(stranger: Visit, token: str, where: str) -> Any:
    page = stranger.go(where)
    page.get_by_label("Key", exact=True).fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".rail")).to_be_visible()
    return page


def test_a_key_is_created_shown_once_and_revoked(stranger: Visit, locked: Desk) -> None:
    key(locked, HOSTILE[:60], "read")
    page = signed_in(stranger, key(locked, "ada", "read", "admin"), "/system?tab=keys")
    expect(page.get_by_role("row", name=re.compile("^<img src=x onerror"))).to_be_visible()
    page.get_by_role("button", name="New key…").click()
    page.get_by_role("button", name="Create the key").click()
    expect(page.get_by_text("Enter a name.")).to_be_visible()
    page.get_by_label("Name *").fill("deploy-bot")
    page.get_by_label(re.compile("^submit")).check()
    page.get_by_role("button", name="Create the key").click()
    token = page.get_by_label("The key", exact=True).input_value()
    page.get_by_role("button", name="I have saved it").click()
    assert token not in page.content()
    with httpx2.Client(base_url=locked.address, headers={"Authorization": f"Bearer {token}"}) as bot:
        assert bot.get("/api/whoami").json()["scopes"] == ["read", "submit"]
    row = page.get_by_role("row", name=re.compile("^deploy-bot"))
    row.get_by_role("button", name="Revoke key deploy-bot").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_have_count(0)
    page.get_by_role("link", name=re.compile("invalid key")).click()
    expect(row).to_contain_text("revoked")
    page.get_by_role("tab", name="Audit").click()
    expect(page.get_by_role("row", name=re.compile("ada revoke key"))).to_be_visible()


def test_a_key_with_only_read_sees_no_buttons(stranger: Visit, locked: Desk) -> None:
    reply, seller = locked.submit("support.reply", "Where is it?"), locked.submit("seller.onboard", {"seller": "B"})
    doubt = locked.submit("transfer", {"to": "Mill"})
    ids = [locked.open_ask(reply)["id"], locked.open_ask(seller, "questions")["id"]]
    for _ in range(400):
        if doubts := locked.all(f"/api/tasks/{doubt}/doubts", "doubts"):
            ids.append(f"{doubt}.{doubts[0]['seq']}")
            break
    page = signed_in(stranger, key(locked, "reader", "read"), f"/inbox?id={ids[0]}")
    for ask_id in ids:
        stranger.go(f"/inbox?id={ask_id}")
        expect(page.get_by_text(re.compile("Your key may read this, but not"))).to_be_visible()
        for name in ("Approve", "Deny…", "Change…", "Growth", "It happened", "Undo it"):
            expect(page.locator("main").get_by_role("button", name=name)).to_have_count(0)
    for where, seen in (("/queues", "Workers"), ("/schedules", "digest"), ("/usage", "Usage and cost")):
        stranger.go(where)
        expect(page.locator("main").get_by_text(seen).first).to_be_visible()
        expect(page.locator("main").get_by_role("button", name=re.compile("[Pp]ause|Trigger"))).to_have_count(0)
    expect(page.locator(".rail").get_by_role("link", name=re.compile("System|Deliveries"))).to_have_count(0)


def test_a_key_of_a_tenant_sees_its_own_tasks(stranger: Visit, locked: Desk) -> None:
    page = signed_in(
        stranger, key(locked, "acme-admin", "read", "submit", "decide", "admin", tenant="acme"), "/overview"
    )
    expect(page.get_by_text("No approvals or questions are waiting.")).to_be_visible()
    expect(page.locator(".rail").get_by_role("link", name=re.compile("Queues|Schedules"))).to_have_count(0)
    stranger.go("/system")
    expect(page.get_by_role("tab", name="Keys")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("row", name=re.compile("acme-admin"))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("boss"))).to_have_count(0)
    page.get_by_role("tab", name="Quotas").click()
    table = page.get_by_role("region", name="Quotas of acme")
    expect(table.get_by_role("row", name=re.compile("^requests"))).to_contain_text("200")


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────────────

PAGES = [
    "/overview",
    "/inbox",
    "/queues",
    "/schedules",
    "/intakes",
    "/deliveries",
    "/deliveries?tab=subscriptions",
    "/usage",
    "/usage?by=day",
    "/system",
    "/system?tab=keys",
    "/system?tab=quotas",
    "/system?tab=locks",
    "/system?tab=audit",
]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Desk]:
    """A server with something on every page, much of it hostile."""
    folder = tmp_path_factory.mktemp("full")
    with ThreadPoolExecutor(1) as aside:  # Playwright has a loop in this thread
        aside.submit(made, f"sqlite:///{folder}/stage.db", receiver.address).result()
    desk = Desk(folder)
    for _ in range(400):
        if {"harm.agent", "payout.run", "support.reply"} <= {
            ask["task"] for ask in desk.all("/api/approvals", "approvals")
        }:
            break
    yield desk
    desk.stop()


@pytest.fixture(params=["light", "dark"])
def eyes(request: pytest.FixtureRequest, browser: Any, full: Desk) -> Iterator[Visit]:
    """A visitor with a phone in dark mode, or, for `make prove`, also at a desk in light mode."""
    if request.param == "light":
        request.getfixturevalue("at_length")
    size = {"width": 390, "height": 844} if request.param == "dark" else {"width": 1280, "height": 900}
    context = browser.new_context(viewport=size, color_scheme=request.param, reduced_motion="reduce")
    context.set_default_timeout(15_000)
    opened = Visit(context.new_page(), full.address)
    yield opened
    opened.check()
    context.close()


def settled(page: Any) -> None:
    expect(page.locator("main h1")).to_be_visible()
    expect(page.locator("main .busy")).to_have_count(0)
    page.wait_for_load_state("load")


def serious(response: dict[str, Any]) -> list[str]:
    violations = [violation for violation in response["violations"] if violation["impact"] in {"serious", "critical"}]
    return [
        f"{violation['id']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for violation in violations
        for node in violation["nodes"][:3]
    ]


def test_every_page_is_accessible_and_shows_hostile_things_as_text(eyes: Visit, full: Desk) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    asks = [
        f"/inbox?id={open_ask['id']}"
        for open_ask in full.all("/api/approvals", "approvals")
        if open_ask["task"] == "harm.agent"
    ]
    wrong = []
    for where in PAGES + asks:
        page = eyes.go(where)
        settled(page)
        wrong += [f"{where}: {line}" for line in serious(axe.Axe().run(page).response)]
        assert (
            page.evaluate(
                "document.querySelectorAll('main img, main script, main iframe, main object, main [onerror]').length"
            )
            == 0
        )
        wide = page.evaluate("[document.querySelector('main').scrollWidth, document.querySelector('main').clientWidth]")
        assert wide[0] <= wide[1], f"{where} is wider than the screen"
    assert wrong == []


def test_hostile_arguments_are_shown_in_full(browser: Any, full: Desk) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    visit = Visit(context.new_page(), full.address)
    (ask,) = [open_ask for open_ask in full.all("/api/approvals", "approvals") if open_ask["task"] == "harm.agent"]
    page = visit.go(f"/inbox?id={ask['id']}")
    shown = page.locator(".given dd").nth(1).inner_text()
    assert shown == HOSTILE.replace("\u202e", "\\u202e").replace("\u2066", "\\u2066").replace("\x1b", "\\u001b")
    visit.check()
    context.close()
