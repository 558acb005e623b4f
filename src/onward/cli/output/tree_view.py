"""Draws a tree on a terminal: a head with a progress bar, tokens and cost, then the branches, then what happens now.

The drawing is never higher than the terminal: ended nodes are folded first, the oldest first; then lines at the top are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from onward.cli.output.screen import has_unicode, sign, state_text
from onward.cli.output.text import count, safe, span
from onward.cli.output.timeline import Mark
from onward.cli.output.tree import Node, Tree
from onward.core.task import State
from onward.core.usage import Usage

BAR_WIDTH = 28
MAX_NAME_WIDTH = 44
"""Columns for the names of nodes. The times behind longer names are not aligned."""

LIVE_TEXT_CHARS = 400
"""Characters of the text of a running model call that are shown."""

MAX_FINAL_LINES = 200
"""Lines of a tree that are printed at the end."""


class Row(NamedTuple):
    """A line of the tree: its node, and the number of folded lines below it. Without a node: the number of nodes left out before."""

    guide: str
    node: Node | None
    hidden: int


class TreeView:
    """Draws one tree repeatedly. It keeps the width of the names, so that columns do not jump."""

    def __init__(self, console: Console, tree: Tree) -> None:
        self._console, self._tree = console, tree
        self._room = 16
        self._spinner = Spinner("dots" if has_unicode(console) else "line")
        self._corner, self._tee, self._pipe = ("└─ ", "├─ ", "│  ") if has_unicode(console) else ("`- ", "|- ", "|  ")

    def lines(self, height: int, *, moving: bool) -> list[Text]:
        """The drawing, in at most `height` lines."""
        now = time.time()
        head, foot = self._head(now), self._foot() if moving else []
        body = self._body(max(3, height - len(head) - len(foot)), now)
        shown = [*head, *body, *foot]
        for line in shown:
            line.no_wrap = True
            line.truncate(max(self._console.width - 1, 1), overflow="ellipsis")
        return shown

    # ── head and foot ────────────────────────────────────────────────────────────────────────────────────────────

    def _head(self, now: float) -> list[Text]:
        tree, began = self._tree, self._tree.lines.began
        first = Text.assemble((safe(tree.name), "bold"), "  ", state_text(State(tree.state)))
        if began is not None:
            first.append(f"  {span((tree.until or now) - began)}", "dim")
        taken = spent(tree)
        if taken:
            first.append(f"  {taken}", "dim")
        room = self._console.width - 2 - first.cell_len
        if room > 16:
            label = f"task {tree.task_id}" if room >= 34 else tree.task_id[-8:]
            first.append(" " * max(2, room - len(label)) + label, "dim")
        bar = self._bar()
        return [first] if bar is None else [first, bar]

    def _bar(self) -> Text | None:
        message, step, total = self._tree.lines.progress
        if total <= 0:
            return None
        full = round(BAR_WIDTH * min(step, total) / total)
        line, rest = ("━", "─") if has_unicode(self._console) else ("=", "-")
        done = self._tree.ended and step >= total
        return Text.assemble(
            (line * full, "green" if done else "cyan"),
            (rest * (BAR_WIDTH - full), "bright_black"),
            f"  {step}/{total}",
            (f"  {message}", "dim"),
        )

    def _foot(self) -> list[Text]:
        tree, shown = self._tree, []
        if tree.lines.live_text:
            text = safe(" ".join(tree.lines.live_text[-LIVE_TEXT_CHARS:].split()))
            room = max(self._console.width - 4, 8)
            shown.append(Text(f"» {text if len(text) <= room else '…' + text[1 - room :]}", "italic"))
        if tree.why:
            shown.append(Text.assemble(self._frame(), "  ", (tree.why, "yellow")))
        elif not tree.running:
            shown.append(Text.assemble(self._frame(), "  ", (tree.state, "dim")))
        return shown

    def _frame(self) -> Text:
        frame = self._spinner.render(time.monotonic())
        text = frame if isinstance(frame, Text) else Text("*")
        text.stylize("cyan")
        return text

    # ── branches ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _body(self, height: int, now: float) -> list[Text]:
        folded: set[int] = set()
        rows = list(self._rows(self._tree.nodes, "", folded, height))
        excess = len(rows) - height
        for row in rows:
            if excess <= 0:
                break
            if row.node is None or row.node is self._tree.nodes[-1]:
                continue
            if (size := row.node.size) and not row.node.busy:
                folded.add(id(row.node))
                excess -= size
        rows = list(self._rows(self._tree.nodes, "", folded, height)) if folded else rows
        above = len(rows) - height + 1 if len(rows) > height else 0
        before = sum(row.hidden for row in rows[: above + 1] if row.node is None) + above if above else 0
        rows = rows[above:]
        widest = max((len(row.guide) + 2 + Text(row.node.line.text).cell_len for row in rows if row.node), default=0)
        self._room = max(self._room, min(widest, MAX_NAME_WIDTH, max(self._console.width // 3, 16)))
        return [*([self._before("", before)] if before else []), *(self._line(row, now) for row in rows)]

    def _rows(self, nodes: list[Node], guide: str, folded: set[int], limit: int) -> Iterator[Row]:
        """The lines of these nodes. Of a long list only its end: the terminal cannot show more, and a journal may have any length."""
        shown = nodes[-limit:]
        if len(shown) < len(nodes):
            yield Row(guide, None, len(nodes) - len(shown))
        for node in shown:
            last = node is shown[-1]
            closed = id(node) in folded
            yield Row(guide + (self._corner if last else self._tee), node, node.size if closed else 0)
            if not closed:
                below = [*node.below, *(node.tree.nodes if node.tree is not None else ())]
                yield from self._rows(below, guide + ("   " if last else self._pipe), folded, limit)

    def _before(self, guide: str, number: int) -> Text:
        dots = "⋮" if has_unicode(self._console) else ":"
        return Text(f"{guide}{dots}  {number:,} before: onward show {self._tree.task_id[-8:]}", "dim")

    def _line(self, row: Row, now: float) -> Text:
        guide, node, hidden = row
        if node is None:
            return self._before(guide, hidden)
        line, tree = node.line, node.tree
        mark, style = sign(self._console, line.mark)
        name: Text
        if tree is not None:
            mark, style = sign(self._console, _ENDS.get(State(tree.state), Mark.BEGIN))
            name = Text.assemble((safe(tree.name), "bold"), "  ", state_text(State(tree.state)))
            took = None if tree.lines.began is None else (tree.until or now) - tree.lines.began
            detail = "  ".join(part for part in (tree.why, spent(tree)) if part)
        else:
            loud = line.mark in {Mark.FAILED, Mark.CRASH, Mark.PERSON, Mark.AGAIN}
            name = Text(line.text, style if loud else "")
            took = line.took if not node.running else now - line.at
            detail = line.detail
        working = node.running or (tree is not None and tree.state == State.RUNNING)
        shown = Text.assemble((guide, "bright_black"), self._frame() if working else (mark, style), " ", name)
        if took is not None:
            shown.pad_right(max(0, self._room - shown.cell_len))
            shown.append(f"  {span(took):>8}", "dim")
        if hidden:
            shown.append(f"  ({count(hidden, 'line')})", "dim")
        if detail:
            shown.append(f"  {detail}", "dim")
        if line.command and tree is None:
            room = self._console.width - 5 - len(line.command)
            shown.truncate(max(room, 12), overflow="ellipsis")
            shown.append(f"  {'→' if has_unicode(self._console) else '->'} ", "dim").append(line.command, "bold")
        return shown


_ENDS = {
    State.COMPLETED: Mark.DONE,
    State.FAILED: Mark.FAILED,
    State.CANCELLED: Mark.FAILED,
    State.WAITING: Mark.ASLEEP,
    State.PENDING: Mark.NOTE,
}


def spent(tree: Tree) -> str:
    """Turns, tokens and cost of a task and all tasks below it; empty if there was no model call."""
    usage, turns = tree.usage_of_all, tree.turns_of_all
    if not turns:
        return ""
    return " · ".join([count(turns, "turn"), *_taken(usage)])


def _taken(usage: Usage) -> list[str]:
    known = [n for n in (usage.input_tokens, usage.output_tokens) if n is not None]
    tokens = f"{sum(known):,} tokens" if len(known) == 2 else "tokens unknown"
    return [tokens] if usage.cost_usd is None else [tokens, f"${usage.cost_usd:,.4f}"]


class Frame:
    """The renderable of a rich Live: draws the tree at the height of the terminal."""

    def __init__(self, view: TreeView) -> None:
        self._view = view

    def __rich_console__(self, console: Console, _: object) -> Iterator[Text | Segment]:
        yield Text("\n", no_wrap=True, overflow="ignore").join(self._view.lines(console.height - 1, moving=True))
