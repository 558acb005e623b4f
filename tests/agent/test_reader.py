"""A page of an artifact: it fits for any bytes, and names the next page."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.agent.calls import MIN_SHOWN_BYTES
from onward.agent.reader import MAX_LINE_BYTES, MAX_LINES, page

LOG = "\n".join(f"line {number} {'error' if number % 300 == 0 else 'ok'}" for number in range(1, 1001)).encode()


def test_lines_from_a_number_on_and_how_to_go_on() -> None:
    text = page(LOG, max_bytes=10_000)
    lines = text.splitlines()
    assert lines[0] == "1: line 1 ok"
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == "(there is more: start=101)"
    assert page(LOG, start=999, max_bytes=4000) == "999: line 999 ok\n1000: line 1000 ok"
    assert page(LOG, start=1, lines=1, max_bytes=4000) == "1: line 1 ok\n(there is more: start=2)"
    assert page(LOG, start=1001, max_bytes=4000) == "(no such lines; it has 1,000)"
    assert page(b"", max_bytes=4000) == "(no such lines; it has 0)"


def test_only_lines_that_contain_a_text() -> None:
    assert page(LOG, search="error", max_bytes=4000) == "300: line 300 error\n600: line 600 error\n900: line 900 error"
    assert (
        page(LOG, search="error", start=301, lines=1, max_bytes=4000)
        == "600: line 600 error\n(there is more: start=900)"
    )
    assert page("größe: 7\r\n".encode(), search="öß", max_bytes=4000) == "1: größe: 7"
    assert page(LOG, search="nothing", max_bytes=4000) == "(no such lines; it has 1,000)"


def test_all_of_it_can_be_read_page_by_page() -> None:
    start, read = 1, list[str]()
    while True:
        *lines, last = page(LOG, start=start, max_bytes=1000).splitlines()
        more = re.fullmatch(r"\(there is more: start=(\d+)\)", last)
        read += lines if more else [*lines, last]
        if more is None:
            break
        start = int(more[1])
    assert "\n".join(line.partition(": ")[2] for line in read).encode() == LOG


def test_a_very_long_line_is_read_in_parts() -> None:
    data = b"".join(b"%06d," % number for number in range(100_000))
    column, read = 1, ""
    for _ in range(5):
        text = page(data, column=column, max_bytes=4000)
        part, where = re.fullmatch(
            r"1: (.*) \(bytes [\d,]+ to [\d,]+ of 700,000 in this line; (.*) goes on\)", text
        ).groups()  # type: ignore[union-attr]
        read, column = read + part, int(where.partition("=")[2])
    assert read.encode() == data[: 5 * MAX_LINE_BYTES]
    match = page(data, search="077777,", max_bytes=4000)
    assert "077776,077777,077778," in match
    assert "bytes 544," in match
    assert "047776,047777," in page(data, search="7777,", column=300_000, max_bytes=4000)
    assert page(b"short\nrather long", column=8, max_bytes=4000) == "2: long (bytes 8 to 11 of 11 in this line)"


@pytest.mark.parametrize("data", [b"\0" * 10, b"a\0", b"\x89PNG\r\n\x1a\n" + b"\xff\xfe\xfd" * 100])
def test_binary_data_is_not_shown(data: bytes) -> None:
    assert page(data, max_bytes=4000) == f"(binary, {len(data):,} bytes: it cannot be read as text)"


def test_a_text_in_another_alphabet_is_readable_as_far_as_it_goes() -> None:
    assert page("Größe: 7 Stück".encode("latin-1"), max_bytes=4000) == "1: Gr\ufffd\ufffde: 7 St\ufffdck"


@given(
    data=st.binary(max_size=3000) | st.text(max_size=3000).map(lambda text: text.encode("utf-8", "replace")),
    start=st.integers(-5, 50),
    lines=st.integers(-5, 200),
    column=st.integers(-5, 5000),
    search=st.text(max_size=3),
    repeat=st.integers(1, 5),
    max_bytes=st.integers(MIN_SHOWN_BYTES, 5000),
)
def test_it_always_fits(
    data: bytes, start: int, lines: int, column: int, search: str, repeat: int, max_bytes: int
) -> None:
    text = page(data * repeat, start=start, lines=lines, column=column, search=search, max_bytes=max_bytes)
    assert 0 < len(text.encode()) <= max_bytes
