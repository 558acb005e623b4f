"""Tables that fit the terminal. Text is shortened first; then empty and less important columns are left out. Ids, which users type,
are never cut. Without a terminal nothing is cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

GAP = 2
MIN_WIDTH = 8
"""Columns of the screen that a shortened text keeps."""

UNLIMITED_WIDTH = 10_000
"""Columns of output that is no terminal: nothing is cut or broken."""


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column. `least` is its smallest width (0: it is never cut). Columns with the highest `drop` are left out first on a narrow
    terminal (0: never). `right` aligns its cells to the right."""

    header: str
    least: int = MIN_WIDTH
    drop: int = 0
    right: bool = False


def fixed(header: str, *, drop: int = 0) -> Column:
    """A column that is never cut: ids, states, times."""
    return Column(header, 0, drop)


def number(header: str, *, drop: int = 0) -> Column:
    """A column of numbers, aligned to the right."""
    return Column(header, 0, drop, right=True)


def table(width: int, columns: Sequence[Column], rows: Iterable[Sequence[Text]]) -> list[Text]:
    """The lines of a table that is at most `width` wide: a header, and a line for each row."""
    lines = [[Text(column.header, "dim") for column in columns], *([*row] for row in rows)]
    widths = fitted(columns, lines, width)
    last = max((index for index, width in enumerate(widths) if width), default=0)
    shown = []
    for line in lines:
        text = Text(no_wrap=True, overflow="ignore")
        for index, (cell, room, column) in enumerate(zip(line, widths, columns, strict=True)):
            if room:
                text.append_text(_cell(cell, room, right=column.right, fill=index != last))
                text.append(" " * GAP if index != last else "")
        text.rstrip()
        shown.append(text)
    return shown


def print_table(console: Console, columns: Sequence[Column], rows: Iterable[Sequence[Text]]) -> None:
    """Print a table."""
    for line in table(console.width if console.file.isatty() else UNLIMITED_WIDTH, columns, rows):
        console.print(line, soft_wrap=True)


def fitted(columns: Sequence[Column], lines: Sequence[Sequence[Text]], room: int) -> list[int]:
    """The width of each column; 0 means that it is left out."""
    full_widths = [max(line[index].cell_len for line in lines) for index in range(len(columns))]
    if _total(full_widths) <= room:
        return full_widths
    order = sorted((index for index, column in enumerate(columns) if column.drop), key=lambda p: -columns[p].drop)
    empty = [index for index in order if not any(line[index].cell_len for line in lines[1:])]
    for index in [*empty, *[index for index in order if index not in empty]]:
        widths = _shortened(columns, full_widths, room)
        if _total(widths) <= room:
            return widths
        full_widths[index] = 0
    widths = _shortened(columns, full_widths, room)
    while _total(widths) > room and max(widths) > 1:  # even the smallest widths do not fit: cut text columns further
        soft = [index for index, column in enumerate(columns) if column.least and widths[index] > 1]
        widest = max(soft or range(len(widths)), key=lambda index: widths[index])
        widths[widest] -= 1
    return widths


def _shortened(columns: Sequence[Column], full_widths: Sequence[int], room: int) -> list[int]:
    """The widths after shortening the widest text column again and again, until all fit or none can be shortened."""
    widths = list(full_widths)
    excess = _total(widths) - room
    while excess > 0:
        soft = [index for index, column in enumerate(columns) if column.least and widths[index] > column.least]
        if not soft:
            break
        widest = max(soft, key=lambda index: widths[index])
        floor = max([columns[widest].least, *[widths[index] for index in soft if widths[index] < widths[widest]]])
        cut = max(1, min(excess, widths[widest] - floor))
        widths[widest] -= cut
        excess -= cut
    return widths


def _total(widths: Sequence[int]) -> int:
    shown = [width for width in widths if width]
    return sum(shown) + GAP * max(0, len(shown) - 1)


def _cell(cell: Text, width: int, *, right: bool, fill: bool) -> Text:
    cell = cell.copy()
    cell.truncate(width, overflow="ellipsis")
    if right:
        cell.pad_left(width - cell.cell_len)
    elif fill:
        cell.pad_right(width - cell.cell_len)
    return cell
