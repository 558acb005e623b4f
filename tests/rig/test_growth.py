"""The growth table: it fills a database with the rows that Onward would have written, and keeps its section of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import growth
from bench.growth import Case
from onward.app.connect import open_store
from tests.kit import not_memory

CASES = [Case("all", ended=120, pending=7, asleep=5), Case("churned", churned=30)]


@not_memory
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_filled_in_rows_are_sound(case: Case, fresh_url: str, kind: str) -> None:
    words = growth.POSTGRES if kind == "postgres" else growth.SQLITE
    fill = growth._fill_postgres if kind == "postgres" else growth._fill_sqlite
    await growth._make(fresh_url)
    for name, count in (("ended", case.ended), ("pending", case.pending), ("asleep", case.asleep)):
        # One after the other: in the benchmark each has a database of its own, and the numbers begin at one in each.
        if count:
            shift = {"ended": 0, "pending": 1_000, "asleep": 2_000}[name]
            part = Case(name, **{name: count})
            fill(fresh_url, [_from(text, shift) for text in growth.statements(words, part)], tidy=True)
    if case.churned:
        fill(fresh_url, [*growth.statements(words, case), *growth.churn(words, case)], tidy=False)
    store = open_store(fresh_url)
    await store.open()
    assert await store.health.census() == []
    assert (await store.overview.ended(1000))[:3] == ((119, 1, 0) if case.ended else (30, 0, 0))
    tasks_by_reason = {row.reason: row.tasks for row in await store.overview.unfinished()}
    assert tasks_by_reason == ({"queued": 7, "asleep": 5} if case.ended else {})
    await store.close()


def _from(text: str, shift: int) -> str:
    return text.replace("lpad(n::text", f"lpad((n + {shift})::text").replace(
        "printf('%012d', n)", f"printf('%012d', n + {shift})"
    )


def test_the_section_is_written_anew_and_the_page_before_it_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Benchmarks\n\nthe table\n")
    cells = dict.fromkeys(growth.OPERATIONS, (0.001, 0.0012))
    for name in ("case-a", "case-b"):
        growth.write(page, {"commit": name}, [(name, "sqlite", cells | {"doctor": (0.001, 0.002)})])
    text = page.read_text()
    assert text.startswith("# Benchmarks\n\nthe table\n\n## Growth\n")
    assert (text.count("## Growth"), "case-a" in text) == (1, False)
    assert "| case-b | sqlite | 1.20 (1.20 ms) |" in text
    assert "**2.00** (2 ms) |" in text
