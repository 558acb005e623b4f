"""docs/cli.md matches the parser, and the picture in the README shows a terminal."""

import xml.etree.ElementTree as ET

import pyte

from rig import picture
from rig.commands import page
from tests.cli.conftest import ROOT


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == page(), "python -m rig.commands > docs/cli.md"


def test_the_picture_matches_a_terminal():
    screen = pyte.Screen(picture.COLUMNS, picture.ROWS)
    pyte.ByteStream(screen).feed(b"\x1b[32m$\x1b[0m a <b>  \x1b[1mc\x1b[0m\r\nonward: no")
    texts = [
        (node.text, node.get("fill"))
        for node in ET.fromstring(picture.svg(screen)).iter()
        if node.text and node.text.strip()
    ]
    assert texts == [("$", "#7ee787"), ("\xa0a\xa0<b>", picture.INK), ("c", picture.INK)]
    shown = ET.parse(ROOT / "docs" / "terminal.svg").getroot()
    text = "".join(node.text or "" for node in shown.iter())
    assert "turn\xa01" in text
    assert "onward\xa0approve" in text
