"""docs/cli.md is what the parser says."""

from rig.commands import page
from tests.cli.conftest import ROOT


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == page(), "python -m rig.commands > docs/cli.md"
