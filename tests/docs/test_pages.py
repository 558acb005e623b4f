"""Rules of the pages in docs/ that need no site: paths exist, decisions have their form, and the site lists every page."""

from __future__ import annotations

import re
import tomllib
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


CHECKOUT_PAGES = {"README.md", "docs/quickstart.md"}
"""Pages that also say how to install from a checkout."""

INSTALL = re.compile(r"pip install ('[^']*'|[^\s`)'\"]+)")
OTHER_PACKAGES = {"tzdata", "--require-hashes"}


def install_problems(page: str, text: str) -> list[str]:
    """The lines of a page that install Onward in another way than `pip install 'onward[EXTRAS]'`."""
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )
    problems = []
    for what in INSTALL.findall(text):
        found = re.fullmatch(r"'(onward|\.)\[([a-z0-9,{}-]+)\]'", what)
        from_checkout = found is not None and found[1] == "."
        unknown = set() if found is None else set(found[2].split(",")) - extras - {"{extra}"}
        if what not in OTHER_PACKAGES and (found is None or unknown or (from_checkout and page not in CHECKOUT_PAGES)):
            problems.append(f"{page}: pip install {what}")
    return problems


def test_onward_is_installed_in_one_way_everywhere() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in pages}
    assert sum(len(INSTALL.findall(text)) for text in texts.values()) > 50
    assert [problem for page, text in texts.items() for problem in install_problems(page, text)] == []
    assert install_problems(
        "docs/x.md", "pip install '.[serve]' or pip install 'onward[sever]' or pip install onward"
    ) == [
        "docs/x.md: pip install '.[serve]'",
        "docs/x.md: pip install 'onward[sever]'",
        "docs/x.md: pip install onward",
    ]
