"""Rules of the pages in docs/ that need no site: paths exist, decisions have their form, and the site lists every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DECISIONS = sorted(path for path in (DOCS / "decisions").glob("*.md") if path.name != "index.md")
DECISION = re.compile(
    r"\n20\d\d-\d\d-\d\d[^\n]*\n\n- \*\*Context:\*\* .+\n- \*\*Decision:\*\* .+\n- \*\*Consequence:\*\* .+", re.DOTALL
)


def test_the_paths_of_the_architecture_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:py|sql))?)`", text))
    assert len(paths) > 40
    assert sorted(path for path in paths if not any((base / path).exists() for base in _bases())) == []


def _bases() -> list[Path]:
    source = ROOT / "src" / "onward"
    return [ROOT, source, *(source / name for name in ("cli", "engine", "server", "store", "core"))]


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_a_date_a_context_and_a_consequence(page: Path) -> None:
    _, *decisions = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert decisions
    assert [text.splitlines()[0] for text in decisions if not DECISION.search(text)] == []


def test_the_site_lists_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = set(re.findall(r"(\S+\.md)$", nav, re.MULTILINE))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages - listed == set(), "add the page to `nav` in mkdocs.yml"
    assert {
        page for page in listed - pages if not (ROOT / page.replace(".md", "").upper()).with_suffix(".md").exists()
    } == set()
