"""The alert rules and the dashboard name metrics, labels and values that a real server has, and pages that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import promql_parser as promql
import pytest
from prometheus_client.parser import text_string_to_metric_families

from onward import Context, Onward
from onward.core.task import Reason, State
from onward.telemetry import COUNTER_METRICS, GAUGE_METRICS, HISTOGRAM_METRICS
from tests.deploy.kit import DEPLOY, ROOT, documents
from tests.kit import only_memory
from tests.server.conftest import serving

ADDED_BY_PROMETHEUS = {"instance", "job"}
GRAFANA = {"$__rate_interval": "5m", "$queue": ".*", "$instance": ".*"}
"""Variables of Grafana, which are no PromQL."""

WORDS = {"reason": set(Reason), "state": set(State), "status": {"500", "503"}}
"""The values of labels that have a closed list, or a form."""


def alerts() -> list[dict[str, Any]]:
    (rules,) = documents(DEPLOY / "monitoring" / "alerts.yaml")
    return [rule for group in rules["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text(encoding="utf-8"))
    return found


def expressions() -> list[str]:
    """All expressions, in plain PromQL."""
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]
    for name, value in GRAFANA.items():
        panels = [text.replace(name, value) for text in panels]
    return [*(rule["expr"] for rule in alerts()), *panels]


def selectors(expression: Any) -> Iterator[Any]:
    """The selectors of a parsed expression."""
    if isinstance(expression, promql.VectorSelector):
        yield expression
    for name in ("lhs", "rhs", "expr", "vector_selector"):
        if (inner := getattr(expression, name, None)) is not None:
            yield from selectors(inner)
    for inner in getattr(expression, "args", None) or []:
        yield from selectors(inner)


def grouped_by(text: str) -> set[str]:
    return {name.strip() for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", text) for name in labels.split(",")}


class Scrape:
    """The metrics of a response: their names, labels, and the values of the labels."""

    def __init__(self, text: str) -> None:
        self.labels: dict[str, set[str]] = {}
        self.values: dict[tuple[str, str], set[str]] = {}
        declared = {
            name.removesuffix("_total"): set(labels)
            for metrics in (COUNTER_METRICS, GAUGE_METRICS, HISTOGRAM_METRICS)
            for name, (_, labels) in metrics.items()
        }
        for family in text_string_to_metric_families(text):
            names = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
            labels = declared.get(family.name, set()) | ({"le"} if family.type == "histogram" else set())
            for suffix in names:
                self.labels[family.name + suffix] = labels
            for sample in family.samples:
                self.labels[sample.name] = self.labels.get(sample.name, set()) | sample.labels.keys()
                for label, value in sample.labels.items():
                    self.values.setdefault((sample.name, label), set()).add(value)


@pytest.fixture
async def scrape(app: Onward) -> Scrape:
    """The response of a server that has done some work. Its first scrape begins to count."""

    async def work(fails: bool) -> None:
        if fails:
            raise ValueError("no")

    @app.task(retry=1)
    async def order(ctx: Context, fails: bool) -> None:
        await ctx.step(work, fails)

    async with serving(app) as address, app.worker(), httpx2.AsyncClient(base_url=address) as client:
        await app.submit(
            order, False, delay="1h"
        )  # before the first scrape: a snapshot of the database is kept for a second
        (await client.get("/metrics")).raise_for_status()
        for fails in (False, True):
            await app.service.wait((await app.submit(order, fails)).id, 20)
        return Scrape((await client.get("/metrics")).raise_for_status().text)


@only_memory
async def test_metrics_and_labels_exist(scrape: Scrape) -> None:
    assert {"onward_queue_tasks", "onward_tasks_ended_total", "onward_step_seconds_bucket"} <= set(scrape.labels)
    missing = []
    for text in expressions():
        named = list(selectors(promql.parse(text)))
        assert named, text
        known = set().union(*(scrape.labels.get(selector.name, set()) for selector in named)) | ADDED_BY_PROMETHEUS
        missing += [selector.name for selector in named if selector.name not in scrape.labels]
        missing += [f"{label} in {text}" for label in grouped_by(text) - known]
        for selector in named:
            allowed = scrape.labels.get(selector.name, set()) | ADDED_BY_PROMETHEUS
            missing += [
                f"{selector.name}{{{matcher.name}}}"
                for matcher in selector.matchers.matchers
                if matcher.name not in allowed
            ]
    assert missing == []


@only_memory
async def test_values_of_labels_exist(scrape: Scrape) -> None:
    """A value comes from a closed list, stands in a real response, or is named in the guide."""
    guide = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs/guides/observability.md").read_text(encoding="utf-8")))
    unknown = []
    for text in expressions():
        for selector in selectors(promql.parse(text)):
            for matcher in selector.matchers.matchers:
                known = WORDS.get(matcher.name) or guide | scrape.values.get((selector.name, matcher.name), set())
                parts = [part for part in matcher.value.split("|") if part != ".*"]
                unknown += [
                    f"{matcher.name}={part} in {text}"
                    for part in parts
                    if not any(re.fullmatch(part, word) for word in known)
                ]
    assert unknown == []


def test_the_parser_refuses_what_is_no_promql() -> None:
    with pytest.raises(ValueError, match="unknown function"):
        promql.parse("rats(onward_store_up[5m])")


def test_an_alert_says_what_it_means_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) > 10
    reference = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for rule in alerts():
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "action", "docs"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        for command in re.findall(r"`(onward [a-z]+)", notes["action"]):
            assert f"## {command}\n" in reference, command
        path, _, anchor = notes["docs"].partition("#")
        assert anchor in _anchors(path), f"{rule['alert']}: {notes['docs']}"


def _anchors(path: str) -> set[str]:
    """The anchors of the headings of a page, as MkDocs makes them."""
    text = re.sub(r"^```.*?^```", "", (ROOT / path).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_the_labels_of_annotations_are_those_of_the_expression() -> None:
    for rule in alerts():
        named = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert named <= grouped_by(rule["expr"]), rule["alert"]


def test_panels_do_not_overlap_and_have_ids() -> None:
    taken: set[tuple[int, int]] = set()
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
