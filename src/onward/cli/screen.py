"""How things look. Colours, boxes and moving parts on a terminal; plain lines where the output goes elsewhere, or with
NO_COLOR. Everything is a Text, never markup: a result that contains "[red]" is a result that contains "[red]"."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onward.cli.text import machine_readable, readable, safe, span
from onward.cli.timeline import Line, Mark
from onward.core.task import State

WIDE = 200
"""Columns where there is no terminal: nothing has to fit, so little is cut."""

_STYLES = {
    Mark.BEGIN: "cyan",
    Mark.DONE: "green",
    Mark.FAILED: "red",
    Mark.CRASH: "bold red",
    Mark.AGAIN: "yellow",
    Mark.ASLEEP: "blue",
    Mark.PERSON: "bold magenta",
    Mark.NOTE: "dim",
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
    """Where a command speaks: `out` is what was asked for, `err` is what is said beside it."""

    def __init__(self, args: Namespace) -> None:
        self.json: bool = args.json
        self.out, self.err = console(sys.stdout), console(sys.stderr)

    @property
    def live(self) -> bool:
        """Whether parts may move."""
        return self.out.is_terminal and not self.json

    def document(self, value: Any) -> None:
        """The one JSON document of this command."""
        print(machine_readable(value, indent=2 if sys.stdout.isatty() else None), flush=True)

    def line(self, value: Any) -> None:
        """One of many JSON lines."""
        print(machine_readable(value), flush=True)

    def say(self, *parts: str | tuple[str, str]) -> None:
        """A line of texts, or texts with styles."""
        self.out.print(Text.assemble(*parts))

    def aside(self, *parts: str | tuple[str, str]) -> None:
        """The same, beside the answer; nothing with --json."""
        if not self.json:
            self.err.print(Text.assemble(*parts))

    def value(self, value: Any) -> None:
        """A JSON value, whole."""
        self.out.print(Text(readable(value, indent=2)), soft_wrap=True)


def console(stream: Any) -> Console:
    """A console for a stream; with no terminal behind it, or NO_COLOR, one that sends nothing but text."""
    plain = bool(os.environ.get("NO_COLOR")) or not stream.isatty() or os.environ.get("TERM") == "dumb"
    wide = not stream.isatty() and not os.environ.get("COLUMNS", "").isdigit()
    return Console(
        file=stream,
        force_terminal=False if plain else None,
        color_system=None if plain else "auto",
        width=WIDE if wide else None,
        markup=False,
        highlight=False,
        emoji=False,
    )


def sign(console: Console, mark: Mark) -> tuple[str, str]:
    """The sign of a mark, in an alphabet that the console has, and its style."""
    signs = _SIGNS if console.encoding.lower().startswith("utf") else _PLAIN_SIGNS
    return signs[mark], _STYLES[mark]


def state_text(state: State, text: str = "") -> Text:
    """A state in its colour."""
    return Text(text or state.value, style=_STATES[state])


def table(*headers: str) -> Table:
    """An empty table that fits its terminal: cells are cut, never wrapped."""
    made = Table(box=SIMPLE_HEAD, header_style="dim", show_edge=False, pad_edge=False)
    for header in headers:
        made.add_column(header, no_wrap=True, overflow="ellipsis")
    return made


def facts(pairs: Iterable[tuple[str, Text | str | None]]) -> Table:
    """Names and values, one to a line; what is None is left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None:
            grid.add_row(name, value if isinstance(value, Text) else Text(safe(value)))
    return grid


def story_grid() -> Table:
    """Columns for the lines of a story: when, sign, what, how long, what came of it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_column(style="dim", justify="right", no_wrap=True)
    grid.add_column(style="dim", no_wrap=True, overflow="ellipsis")
    return grid


def story_row(console: Console, line: Line, began: float) -> tuple[Text, ...]:
    """One line of a story, for `story_grid`."""
    mark, style = sign(console, line.mark)
    loud = line.mark not in {Mark.DONE, Mark.BEGIN, Mark.NOTE}
    return (
        Text(f"+{span(line.at - began)}"),
        Text(mark, style=style),
        Text(line.text, style=style if loud else ""),
        Text("" if line.took is None else span(line.took)),
        Text(line.detail),
    )


def story_line(console: Console, line: Line, began: float) -> Text:
    """The same on its own, for a story that is still being told."""
    when, mark, text, took, detail = story_row(console, line, began)
    when.stylize("dim")
    when.pad_left(max(0, 10 - len(when)))
    rest = [Text(f"{part}  ", style="dim") for part in (took.plain, detail.plain) if part]
    shown = Text.assemble(when, "  ", mark, "  ", text, "  ", *rest)
    shown.rstrip()
    shown.no_wrap = True
    shown.truncate(console.width - 1, overflow="ellipsis")
    return shown


def indented(renderable: Any) -> Padding:
    """Two columns in."""
    return Padding(renderable, (0, 0, 0, 2))
