"""Prints for people. A terminal gets colours and moving parts, and lines that fit; a pipe, or a terminal with NO_COLOR, gets plain
lines. Everything is a Text, never markup: a result that contains "[red]" prints as "[red]"."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from onward.cli.output.table import UNLIMITED_WIDTH, Column, print_table
from onward.cli.output.text import machine_readable, readable, safe, span, visible
from onward.cli.output.timeline import Line, Mark
from onward.core.task import State

Part = str | Text | tuple[str, str]
"""A piece of a line, plain or with its style."""

_STYLES = {
    Mark.BEGIN: "cyan",
    Mark.DONE: "green",
    Mark.FAILED: "red",
    Mark.CRASH: "bold red",
    Mark.AGAIN: "yellow",
    Mark.ASLEEP: "blue",
    Mark.PERSON: "bold magenta",
    Mark.NOTE: "dim",
    Mark.PROGRESS: "dim",
    Mark.TEXT: "",
}
_SIGNS = {
    Mark.BEGIN: "▸",
    Mark.DONE: "✓",
    Mark.FAILED: "✗",
    Mark.CRASH: "✗",
    Mark.AGAIN: "↻",
    Mark.ASLEEP: "☾",
    Mark.PERSON: "!",
    Mark.NOTE: "·",
    Mark.PROGRESS: "·",
    Mark.TEXT: "»",
}
_PLAIN_SIGNS = {
    Mark.BEGIN: ">",
    Mark.DONE: "+",
    Mark.FAILED: "x",
    Mark.CRASH: "X",
    Mark.AGAIN: "~",
    Mark.ASLEEP: "z",
    Mark.PERSON: "!",
    Mark.NOTE: ".",
    Mark.PROGRESS: ".",
    Mark.TEXT: ">",
}
_STATES = {
    State.PENDING: "yellow",
    State.RUNNING: "cyan",
    State.WAITING: "blue",
    State.COMPLETED: "green",
    State.FAILED: "red",
    State.CANCELLED: "dim",
}


class Screen:
    """The output of a command: `out` is for its result, `err` for messages about it."""

    def __init__(self, args: Namespace) -> None:
        self.json: bool = args.json
        self.out, self.err = console(sys.stdout), console(sys.stderr)

    @property
    def live(self) -> bool:
        """Whether the output is a terminal that may show moving parts."""
        return self.out.is_terminal and not self.json

    def document(self, value: Any) -> None:
        """Print the only JSON document of this command."""
        print(machine_readable(value, indent=2 if sys.stdout.isatty() else None), flush=True)

    async def long_document(self, fields: dict[str, Any], name: str, items: AsyncIterator[Any]) -> None:
        """Print the same with one more field: a list that is too long for the memory. `fields` must not be empty."""
        sys.stdout.write(f"{machine_readable(fields)[:-1]}, {machine_readable(name)}: [")
        comma = ""
        async for item in items:
            sys.stdout.write(f"{comma}{machine_readable(item)}")
            comma = ",\n"
        print("]}", flush=True)

    def table(self, value: Any, columns: Sequence[Column], rows: Sequence[Sequence[Text]], empty: str) -> int:
        """Print a list: the JSON document with --json, else a table, or the sentence `empty`. Returns exit status 0."""
        if self.json:
            self.document(value)
        elif rows:
            print_table(self.out, columns, rows)
        else:
            self.aside(empty)
        return 0

    def line(self, value: Any) -> None:
        """Print one of many JSON lines, in one write: several processes may share the output (`worker --processes`)."""
        sys.stdout.write(f"{machine_readable(value)}\n")
        sys.stdout.flush()

    def say(self, *parts: Part) -> None:
        """Print a line of text."""
        self.out.print(Text.assemble(*parts), soft_wrap=True)

    def aside(self, *parts: Part) -> None:
        """Print a line that is no part of the result: on stderr, or on the terminal if stdout is one; nothing with --json."""
        if not self.json:
            (self.out if self.live else self.err).print(Text.assemble(*parts), soft_wrap=True)

    def block(self, renderable: Any) -> None:
        """Print something of many lines; without a terminal, without trailing spaces."""
        if self.out.is_terminal:
            self.out.print(renderable)
            return
        with self.out.capture() as capture:
            self.out.print(renderable)
        for line in capture.get().splitlines():
            self.out.print(Text(line.rstrip()), soft_wrap=True)

    def value(self, value: Any) -> None:
        """Print a JSON value in full: on one line if it fits."""
        line = readable(value)
        fits = len(line) < self.out.width or not isinstance(value, dict | list)
        self.out.print(Text(line if fits else readable(value, indent=2)), soft_wrap=True)


class _VisibleConsole(Console):
    """A console that writes every character so that it can be seen, from wherever the text came: all that it prints passes here."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else visible(segment.text)
            yield segment if shown == segment.text else Segment(shown, segment.style)


def console(stream: Any) -> Console:
    """A console for a stream. Without a terminal, or with NO_COLOR, it writes only text, no escape sequences."""
    plain = bool(os.environ.get("NO_COLOR")) or not stream.isatty() or os.environ.get("TERM") == "dumb"
    unlimited = not stream.isatty() and not os.environ.get("COLUMNS", "").isdigit()
    return _VisibleConsole(
        file=stream,
        force_terminal=False if plain else None,
        color_system=None if plain else "auto",
        width=UNLIMITED_WIDTH if unlimited else None,
        markup=False,
        highlight=False,
        emoji=False,
    )


def sign(console: Console, mark: Mark) -> tuple[str, str]:
    """The sign of a mark in the encoding of the console, and its style."""
    signs = _SIGNS if has_unicode(console) else _PLAIN_SIGNS
    return signs[mark], _STYLES[mark]


def has_unicode(console: Console) -> bool:
    """Whether the console can show characters beyond ASCII."""
    return console.encoding.lower().startswith("utf")


def state_text(state: State, text: str = "") -> Text:
    """A state in its colour."""
    return Text(text or state.value, style=_STATES[state])


def facts(pairs: Iterable[tuple[str, Text | str | None]]) -> Table:
    """A grid of names and values, one pair a line; pairs whose value is None are left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None:
            grid.add_row(name, value if isinstance(value, Text) else Text(safe(value)))
    return grid


def verdicts() -> Table:
    """A grid for the results of checks: sign, name, detail."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=30)
    grid.add_column(overflow="fold")
    return grid


def format_line(console: Console, line: Line, began: float, room: int = 24) -> Text:
    """A line of a timeline: time, sign, text, duration, detail. `room` is the width of the texts."""
    mark, style = sign(console, line.mark)
    quiet = line.mark in {Mark.BEGIN, Mark.DONE, Mark.NOTE, Mark.PROGRESS}
    text = Text(line.text, "" if quiet else style)
    if line.took is not None:
        text.pad_right(max(0, room - text.cell_len))
        text.append(f"  {span(line.took):>7}", "dim")
    if line.detail:
        text.append(f"  {line.detail}", "dim" if quiet else "")
    if line.command:
        text.append(f"  {'→' if has_unicode(console) else '->'} ", "dim").append(line.command, "bold")
    shown = Text.assemble((f"{'+' + span(line.at - began):>11}", "dim"), "  ", (mark, style), "  ", text)
    if quiet and console.file.isatty():
        shown.truncate(console.width - 1, overflow="ellipsis")
    return shown


def print_lines(console: Console, lines: Sequence[Line], began: float) -> None:
    """Print the lines of a timeline with aligned columns."""
    room = max((len(line.text) for line in lines if line.took is not None), default=0)
    for line in lines:
        console.print(format_line(console, line, began, min(room, 40)), soft_wrap=True)


def indented(renderable: Any) -> Padding:
    """Indented by two columns."""
    return Padding(renderable, (0, 0, 0, 2), expand=False)
