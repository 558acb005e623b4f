"""How a tree looks on a terminal: a head with the bar, tokens and cost, the branches, and what goes on right now.

It is never higher than the terminal: what has ended is folded first, the oldest first; then lines at the top give way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from onward.cli.output.screen import sign, speaks_unicode, state_text
from onward.cli.output.text import count, safe, span
from onward.cli.output.timeline import Mark
from onward.cli.output.tree import Node, Tree
from onward.core.task import State
from onward.core.usage import Usage

BAR = 28
ROOM = 44
"""Columns of the screen that the names may take before the times are no longer in line."""

TAIL = 400
"""Characters of what a model is saying that are shown while it says it."""

MOST = 200
"""Lines of a tree that are printed when it has ended."""


class Row(NamedTuple):
    """A line of the tree: what it is, and how many below it are folded. Without a node, how many before are not shown."""

    guide: str
    node: Node | None
    hidden: int


class TreeView:
    """Draws one tree, again and again. It remembers how wide its names were, so that nothing jumps."""

    def __init__(self, console: Console, tree: Tree) -> None:
        self._console, self._tree = console, tree
        self._room = 16
        self._spinner = Spinner("dots" if speaks_unicode(console) else "line")
        self._corner, self._tee, self._pipe = (
            ("└─ ", "├─ ", "│  ") if speaks_unicode(console) else ("`- ", "|- ", "|  ")
        )

    def lines(self, height: int, *, moving: bool) -> list[Text]:
        """All of it, in at most so many lines."""
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
        tree, began = self._tree, self._tree.story.began
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
        message, step, total = self._tree.story.progress
        if total <= 0:
            return None
        full = round(BAR * min(step, total) / total)
        line, rest = ("━", "─") if speaks_unicode(self._console) else ("=", "-")
        done = self._tree.ended and step >= total
        return Text.assemble(
            (line * full, "green" if done else "cyan"),
            (rest * (BAR - full), "bright_black"),
            f"  {step}/{total}",
            (f"  {message}", "dim"),
        )

    def _foot(self) -> list[Text]:
        tree, shown = self._tree, []
        if tree.story.text:
            said = safe(" ".join(tree.story.text[-TAIL:].split()))
            room = max(self._console.width - 4, 8)
            shown.append(Text(f"» {said if len(said) <= room else '…' + said[1 - room :]}", "italic"))
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
        self._room = max(self._room, min(widest, ROOM, max(self._console.width // 3, 16)))
        return [*([self._before("", before)] if before else []), *(self._line(row, now) for row in rows)]

    def _rows(self, nodes: list[Node], guide: str, folded: set[int], most: int) -> Iterator[Row]:
        """Of a long list only its end: nobody sees the rest, and a journal may have any length."""
        shown = nodes[-most:]
        if len(shown) < len(nodes):
            yield Row(guide, None, len(nodes) - len(shown))
        for node in shown:
            last = node is shown[-1]
            closed = id(node) in folded
            yield Row(guide + (self._corner if last else self._tee), node, node.size if closed else 0)
            if not closed:
                below = [*node.below, *(node.tree.nodes if node.tree is not None else ())]
                yield from self._rows(below, guide + ("   " if last else self._pipe), folded, most)

    def _before(self, guide: str, many: int) -> Text:
        dots = "⋮" if speaks_unicode(self._console) else ":"
        return Text(f"{guide}{dots}  {many:,} before: onward show {self._tree.task_id[-8:]}", "dim")

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
            took = None if tree.story.began is None else (tree.until or now) - tree.story.began
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
            shown.append(f"  {'→' if speaks_unicode(self._console) else '->'} ", "dim").append(line.command, "bold")
        return shown


_ENDS = {
    State.COMPLETED: Mark.DONE,
    State.FAILED: Mark.FAILED,
    State.CANCELLED: Mark.FAILED,
    State.WAITING: Mark.ASLEEP,
    State.PENDING: Mark.NOTE,
}


def spent(tree: Tree) -> str:
    """Turns, tokens and cost of a task and all below it, in a few words; empty where no model was asked."""
    usage, turns = tree.usage_of_all, tree.turns_of_all
    if not turns:
        return ""
    return " · ".join([count(turns, "turn"), *_taken(usage)])


def _taken(usage: Usage) -> list[str]:
    known = [n for n in (usage.input_tokens, usage.output_tokens) if n is not None]
    tokens = f"{sum(known):,} tokens" if len(known) == 2 else "tokens unknown"
    return [tokens] if usage.cost_usd is None else [tokens, f"${usage.cost_usd:,.4f}"]


class Frame:
    """What a rich Live shows: the tree, as high as the terminal is, drawn anew each time."""

    def __init__(self, view: TreeView) -> None:
        self._view = view

    def __rich_console__(self, console: Console, _: object) -> Iterator[Text | Segment]:
        yield Text("\n", no_wrap=True, overflow="ignore").join(self._view.lines(console.height - 1, moving=True))
