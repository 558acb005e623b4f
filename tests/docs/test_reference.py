"""The pages of the Python reference match the code."""

from __future__ import annotations

import pytest

from rig.python_reference import FOLDER, pages

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_the_page_matches_the_code(name: str) -> None:
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == PAGES[name], "python -m rig.python_reference"


def test_every_public_name_has_a_text() -> None:
    """A heading with a signature and nothing else helps no reader."""
    bare = [
        section.splitlines()[0]
        for page in PAGES.values()
        for section in page.split("\n## ")[1:]
        if not section.partition("```\n")[2].strip()
    ]
    assert bare == []
