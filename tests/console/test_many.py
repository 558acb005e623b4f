"""Lists with more rows than a page draws: a button draws more of them, and they stay when the page is drawn again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onward import Onward
from onward.service.submission import SubmitRequest
from onward.store.shared.intakes import IntakeReport
from tests.console.conftest import Server, Visit

expect = pytest.importorskip("playwright.sync_api", reason="pip install playwright").expect
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]  # one browser at a time

PATIENCE_MS = 60_000
"""How long a test waits for a page of a busy machine."""

QUEUES, SCHEDULES, INTAKES, ARTIFACTS = 120, 130, 110, 25


async def _fill(url: str) -> str:
    """Fill a database; the id of the task that has artifacts."""
    app = Onward(url, poll_s=0.05)

    @app.task
    async def leave(ctx: Any, n: int = 0) -> None:
        for number in range(ARTIFACTS):
            await ctx.artifact(f"content {number}", type="text/plain", summary=f"report {number}")

    for n in range(SCHEDULES):
        app.schedule(f"nightly {n:03}", leave, n, cron="0 3 * * *")
    async with app:
        await app.save_schedules()
        async with app.worker():
            task = await app.submit(leave)
            await task.result(timeout=60)
        await app.service.submit([SubmitRequest("leave", queue=f"queue-{n:03}") for n in range(QUEUES)])
        for n in range(INTAKES):
            report = IntakeReport(f"intake {n:03}", "h:1", "shop/mail", "leave", None, "running", "", n, 0, 0.5, n)
            await app.store.intakes.report(report)
    return task.id


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    folder = tmp_path_factory.mktemp("many")
    with ThreadPoolExecutor(1) as aside:  # the browser has the event loop of this thread
        task_id = aside.submit(lambda: asyncio.run(_fill(f"sqlite:///{folder}/stage.db"))).result()
    started = Server(folder, "--queues", "default,queue-001")
    yield started, task_id
    started.stop()


@pytest.fixture(scope="module")
def server(filled: tuple[Server, str]) -> Server:
    return filled[0]


def test_a_button_draws_more_rows_and_they_stay(visit: Visit) -> None:
    page = visit.go("/queues")
    queues = page.locator("section.part", has=page.get_by_role("heading", name="Queues"))
    expect(queues.locator("tbody tr")).to_have_count(100, timeout=PATIENCE_MS)
    expect(queues.locator(".more-row")).to_contain_text(
        re.compile(rf"100 of {QUEUES + 1}|100 of {QUEUES}"), timeout=PATIENCE_MS
    )
    queues.get_by_role("button", name=re.compile(r"Show 2\d more")).click()
    expect(queues.get_by_role("link", name=f"queue-{QUEUES - 1:03}")).to_be_visible(timeout=PATIENCE_MS)
    with page.expect_response(re.compile("/api/queues"), timeout=PATIENCE_MS):
        pass  # the next read, which draws the ages again
    page.wait_for_timeout(1_000)
    expect(queues.get_by_role("link", name=f"queue-{QUEUES - 1:03}")).to_be_visible(timeout=PATIENCE_MS)
    expect(queues.locator("tbody tr", has_text="queue-001").locator(".chip", has_text="active")).to_be_visible(
        timeout=PATIENCE_MS
    )
    expect(queues.locator("tbody tr", has_text="queue-099").get_by_text("no worker")).to_be_visible(timeout=PATIENCE_MS)


@pytest.mark.parametrize(
    ("path", "rows", "last"), [("/schedules", SCHEDULES, "nightly 129"), ("/intakes", INTAKES, "intake 109")]
)
def test_schedules_and_intakes(visit: Visit, path: str, rows: int, last: str) -> None:
    page = visit.go(path)
    expect(page.locator("tbody tr")).to_have_count(100, timeout=PATIENCE_MS)
    page.get_by_role("button", name=f"Show {rows - 100} more").click()
    expect(page.locator("tbody tr")).to_have_count(rows, timeout=PATIENCE_MS)
    expect(page.get_by_text(last)).to_be_visible(timeout=PATIENCE_MS)
    page.set_viewport_size({"width": 390, "height": 844})
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not page.evaluate(wide), "no page scrolls sideways on a phone"


def test_artifacts_are_loaded_as_they_are_shown(visit: Visit, filled: tuple[Server, str]) -> None:
    page = visit.go(f"/tasks/{filled[1]}?tab=artifacts")
    expect(page.locator(".artifact")).to_have_count(20, timeout=PATIENCE_MS)
    expect(page.get_by_text("content 19")).to_be_visible(timeout=PATIENCE_MS)
    loaded = [request.url for request in visit.requests if "/api/artifacts/" in request.url]
    assert len(loaded) == 20
    page.get_by_role("button", name=f"Show {ARTIFACTS - 20} more").click()
    expect(page.locator(".artifact")).to_have_count(ARTIFACTS, timeout=PATIENCE_MS)
    expect(page.get_by_text(f"content {ARTIFACTS - 1}")).to_be_visible(timeout=PATIENCE_MS)
