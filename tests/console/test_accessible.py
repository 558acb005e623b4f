"""Accessibility of the console: axe finds nothing serious, in light and dark, wide and narrow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.console.conftest import Server, Visit

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]  # one browser at a time


@pytest.fixture(scope="module")
def places(server: Server) -> dict[str, str]:
    order = server.submit(
        "order", {"name": "a", "lines": [{"sku": "mug"}, {"sku": "lamp"}]}, labels={"team": "shop"}, priority=3
    )
    agent = server.submit("villain", "look around")
    failed = server.submit("breaks", {"text": "no luck"})
    asks = server.submit("pay", {"usd": 7})
    for task in (order, agent, failed):
        server.ended(task)
    gallery = server.submit("gallery", {})
    server.ended(gallery)
    tabs = {
        f"agent, {tab}": f"/tasks/{agent}?tab={tab}"
        for tab in ("conversation", "state", "events", "children", "deliveries")
    }
    return {
        "list": "/tasks",
        "none": "/tasks?q=nothing-at-all",
        "task": f"/tasks/{order}?step=3",
        "failed": f"/tasks/{failed}",
        "asks": f"/tasks/{asks}",
        "artifacts": f"/tasks/{gallery}?tab=artifacts",
        "new": "/new?name=order",
        "lost": "/nowhere",
        **tabs,
    }


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_serious(visit: Visit, places: dict[str, str], scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    page = visit.page
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 844})
    violations = {}
    for name, where in places.items():
        visit.go(where)
        page.wait_for_selector("main > *")
        page.wait_for_timeout(400)
        violations[name] = _serious(axe.Axe().run(page).response)
    assert {name: lines for name, lines in violations.items() if lines} == {}


def _serious(response: dict[str, Any]) -> list[str]:
    return [
        f"{violation['id']}: {node['html'][:120]} {node['failureSummary'][:200]}"
        for violation in response["violations"]
        if violation["impact"] in {"serious", "critical"}
        for node in violation["nodes"][:3]
    ]
