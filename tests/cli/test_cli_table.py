"""Tables fit any width with any content."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from onward.cli.output.table import Column, fixed, number, table
from onward.cli.output.text import readable, safe, short
from tests.cli.conftest import controls

COLUMNS = (
    fixed("ID"),
    fixed("STATE"),
    Column("TASK"),
    Column("QUEUE", 6, drop=2),
    number("AGE", drop=1),
    Column("", 16),
)
ROW = ("7k2m8n1p", "waiting", "deploy-the-shop", "default", "12 s", "asks for approval: delete everything that is old")


def lines(width: int, *rows: tuple[str, ...]) -> list[str]:
    return [line.plain for line in table(width, COLUMNS, [[Text(safe(cell)) for cell in row] for row in rows])]


def test_with_room_nothing_is_cut():
    header, row = lines(200, ROW)
    assert header == "ID        STATE    TASK             QUEUE     AGE"
    assert row.endswith("asks for approval: delete everything that is old")


def test_text_is_cut_first_then_columns_and_never_an_id():
    assert lines(80, ROW)[1] == "7k2m8n1p  waiting  deploy-the-shop  default  12 s  asks for approval: delete ev…"
    assert "QUEUE" not in lines(52, ROW)[0]
    assert "AGE" in lines(52, ROW)[0]
    narrow = lines(45, ROW)
    assert "AGE" not in narrow[0]
    for width in range(30, 200):
        assert lines(width, ROW)[1].startswith("7k2m8n1p  waiting")


def test_numbers_stand_to_the_right():
    rows = [[Text("a"), Text(many)] for many in ("1", "1,000")]
    assert [line.plain for line in table(80, (Column("NAME"), number("MANY")), rows)] == [
        "NAME   MANY",
        "a         1",
        "a     1,000",
    ]


@given(
    width=st.integers(4, 220),
    rows=st.lists(st.tuples(*[st.text(max_size=60)] * 6), max_size=5),
)
@settings(max_examples=150, deadline=None)
def test_no_line_is_wider_than_the_terminal_or_has_control_characters(width, rows):
    for line in table(width, COLUMNS, [[Text(safe(cell)) for cell in row] for row in rows]):
        assert line.cell_len <= max(width, 16)
        assert not controls(line.plain)


@pytest.mark.parametrize(
    "evil", ["\x1b[31m", "\x9b2J", "\u202e", "\u2066", "\x07", "a\rb", "\u200b", "\ud800", "\U000e0001", "\x7f"]
)
def test_control_characters_are_escaped(evil):
    for shown in (safe(evil), short(evil * 100, 20), readable({"a": evil}), readable([evil], indent=2)):
        assert all(character.isprintable() or character == "\n" for character in shown)


def test_a_long_text_is_cut_before_it_is_escaped():
    class Loud(str):
        __slots__ = ()

        def __getitem__(self, part):
            assert part == slice(None, 61)
            return "x" * 61

        def __str__(self):
            return self

    assert len(short(Loud("x" * 1000))) == 60
