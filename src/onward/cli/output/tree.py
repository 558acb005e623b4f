"""Turns a journal into a tree: turns, steps, waits, and what happened inside of them. Pure: records in, nodes out.

The words are those of timeline.py. Here each step or wait has one node, which changes as it goes on. The tree does not show shifts;
it shows a shift that broke off, in the step that ran then.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onward.cli.output.text import safe, short
from onward.cli.output.timeline import MAX_DETAIL, Line, LineRenderer, Mark
from onward.core import record as r
from onward.core.journal.cuts import SUBMIT
from onward.core.journal.open_waits import plain_key, split_key
from onward.core.journal.reader import Event, step_name
from onward.core.journal.turns import model_call
from onward.core.journal.waterfall import KILLED
from onward.core.usage import Usage, of_call, restored

SILENT = frozenset({r.SUBMITTED, r.SHIFT, r.HANDED_BACK, r.PATCHED, r.HEARD, r.CHECKPOINT, r.VERSION})
"""Records that change no node."""

WAITS = frozenset({r.SLEEP, r.SIGNAL, r.QUESTION, r.APPROVAL, r.CHILD, r.LOCK_AWAITED})
RUNS = frozenset({r.STEP_STARTED, r.ANNOUNCED})
ID_LENGTH = 26


@dataclasses.dataclass(slots=True)
class Node:
    """A step, a turn, a wait or a note: its newest line, whether it is open, and the nodes inside of it."""

    line: Line
    open: bool = False
    running: bool = False
    below: list[Node] = dataclasses.field(default_factory=list)
    tree: Tree | None = None
    """The tree of the child task that this step started."""

    @property
    def busy(self) -> bool:
        """Whether the node, or one below it, is open."""
        return self.open or any(node.busy for node in self.below) or (self.tree is not None and not self.tree.ended)

    @property
    def size(self) -> int:
        """The number of lines below the node."""
        more = 0 if self.tree is None else sum(1 + node.size for node in self.tree.nodes)
        return more + sum(1 + node.size for node in self.below)


class Tree:
    """The tree of one task. Read its records in order; `nodes` are the top nodes."""

    def __init__(self, task_id: str, name: str = "") -> None:
        self.task_id, self.name = task_id, name
        self.lines = LineRenderer(task_id)
        self.nodes: list[Node] = []
        self.children: list[Tree] = []
        """The trees of the child tasks that are shown."""
        self.usage = Usage()
        self.turns = 0
        self.ended = False
        self.until: float | None = None
        """When it ended."""
        self.state = "pending"
        self.why = ""
        self._by_key: dict[str, Node] = {}
        self._by_seq: dict[int, Node] = {}
        self._by_child: dict[str, Node] = {}
        """Steps that started a child, by its id."""
        self._turn: Node | None = None
        self._patched = False
        self._crashed: Node | None = None
        """The line about the shift that broke off, until the next shift begins."""

    @property
    def seq(self) -> int:
        """The number of the last record that was read."""
        return self.lines.reader.seq

    # ── children ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def running(self) -> bool:
        """Whether a step of the task, or of a task below it, runs."""
        return bool(self.lines.reader.running) or any(child.running for child in self.children)

    @property
    def children_started(self) -> int:
        """The number of children that steps of the task started."""
        return len(self._by_child)

    def add_child(self, child: Tree, at: float) -> None:
        """Show a child at the step that started it."""
        node = self._by_child.get(child.task_id)
        if node is None:
            node = Node(Line(at, Mark.NOTE, ""))
            self.nodes.append(node)
        node.tree = child
        self.children.append(child)
        for siblings in (self.nodes, *(parent.below for parent in _all(self.nodes))):
            # The node of the wait for the child is redundant now.
            siblings[:] = [other for other in siblings if other.line.key != f"child:{child.task_id}"]

    @property
    def usage_of_all(self) -> Usage:
        """The model usage of the task and all tasks below it."""
        return sum((child.usage_of_all for child in self.children), self.usage)

    @property
    def turns_of_all(self) -> int:
        """The turns of the task and all tasks below it."""
        return self.turns + sum(child.turns_of_all for child in self.children)

    # ── records ──────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, record: r.Record) -> None:
        """Read one more record."""
        event = self.lines.reader.read(record)
        lines = self.lines.render_event(event)
        if event.interrupted is not None:
            self._crash(lines.pop(0))
        line = lines[0] if lines else None
        self._patched |= record.kind == r.PATCHED
        self._account(event)
        if record.kind in RUNS:
            self._runs(event)
        elif record.kind == r.SHIFT:
            self._shift(line)
        elif record.kind == r.PROGRESS:
            self._progress(event)
        elif record.kind in {r.SLEPT, r.WAITED, r.LOCK_TAKEN, r.LOCK_LEFT}:
            self._waited(event, line)
        elif line is not None:
            self._update(event, line)
        if record.kind in r.ENDS:
            self._end(record)

    def _update(self, event: Event, line: Line) -> None:
        """Records that have a line."""
        if event.kind == r.STEP_DONE:
            self._done(event, line)
        elif event.kind in WAITS:
            self._waits(event, line)
        elif event.kind == r.MESSAGE and (node := self._by_seq.get(event.count("ref"))) is not None:
            self._answered(node, line)
        elif event.kind == r.STEP_RETRY:
            self._retry(event, line)
        elif event.kind == r.MESSAGE and event.fields.get("kind") == "child":
            pass  # the tree shows the child itself
        elif event.kind in {r.SAGA, r.SAGA_DONE}:
            self._saga(event, line)
        elif event.kind not in SILENT:
            self._note(event, line)

    def _account(self, event: Event) -> None:
        if event.kind == r.CHECKPOINT and "value" in event.fields:
            self.usage = restored(event.fields["value"], self.task_id)
        elif event.kind == r.STEP_DONE and not event.record.dropped:
            self.usage += of_call(event.result, self.task_id)

    def _name(self, key: str) -> str:
        """The name of a step. Calls of a turn lose their number, which only counts calls of the same tool."""
        return plain_key(key) if self._turn is None else safe(step_name(key))

    def _runs(self, event: Event) -> None:
        node = self._by_key.get(event.key)
        if node is None:
            model = step_name(event.key) == "model" and self._is_agent
            line = Line(event.at, Mark.BEGIN, f"turn {self.turns + 1}" if model else self._name(event.key))
            node = self._add(event, line, turn=model)
        node.line = dataclasses.replace(node.line, at=event.at, mark=Mark.BEGIN, detail="", command="")
        node.open = node.running = True

    @property
    def _is_agent(self) -> bool:
        """An agent has patched its state before its first model call."""
        return self.turns > 0 or self._patched

    def _done(self, event: Event, line: Line) -> None:
        call = model_call(event.record)
        node = self._by_key.get(event.key)
        if call is not None:
            self.turns = call.get("turn", self.turns + 1)
            line = dataclasses.replace(line, text=f"turn {self.turns}", detail=_price(call))
            node = node or self._add(event, line, turn=True)
            self._turn = node
        else:
            line = dataclasses.replace(line, text=self._name(event.key))
            node = node or self._add(event, line)
        node.line, node.open, node.running = line, False, False
        result = event.result
        if isinstance(result, str) and len(result) == ID_LENGTH and step_name(event.key).startswith(SUBMIT):
            self._by_child[result] = node

    def _retry(self, event: Event, line: Line) -> None:
        """Show each failed attempt as a line below the step."""
        node = self._by_key.get(event.key) or self._add(event, Line(event.at, Mark.BEGIN, self._name(event.key)))
        text = f"attempt {safe(event.fields.get('attempt', '?'))} failed"
        node.below.append(Node(dataclasses.replace(line, text=text)))
        node.open, node.running = True, False
        node.line = dataclasses.replace(node.line, mark=Mark.AGAIN)

    def _waits(self, event: Event, line: Line) -> None:
        child = str(event.fields.get("child")) if event.kind == r.CHILD else ""
        if child and (node := self._by_child.get(child)) is not None and node.tree is not None:
            return
        key = f"child:{child}" if child else line.key
        node = self._add(event, dataclasses.replace(line, text=line.text.strip(), key=key))
        node.open = True

    def _waited(self, event: Event, line: Line | None) -> None:
        node = self._by_key.get(event.key)
        if node is None or (event.kind == r.LOCK_LEFT and not node.open):
            return
        expired = line is not None and line.mark is Mark.AGAIN
        detail = node.line.detail if event.kind == r.WAITED else ""
        detail = line.text.strip() if expired and line is not None else detail
        mark = Mark.AGAIN if expired else Mark.DONE
        took = event.at - node.line.at
        node.line = dataclasses.replace(node.line, mark=mark, took=took, detail=detail, command="")
        node.open = False

    def _answered(self, node: Node, line: Line) -> None:
        """Show the answer at the wait."""
        detail = " ".join(part for part in (line.text, line.detail) if part)
        node.line = dataclasses.replace(node.line, detail=detail, command="")

    def _progress(self, event: Event) -> None:
        """Show the message of an agent at its turn."""
        fields = event.fields
        if self._turn is None or "turn" not in fields or "tools" in fields or "text" in fields:
            return
        parts = [self._turn.line.detail, short(fields.get("message", ""), MAX_DETAIL)]
        self._turn.line = dataclasses.replace(self._turn.line, detail="  ".join(part for part in parts if part))

    def _crash(self, line: Line) -> None:
        """Show a shift that broke off: in the step that ran then, else in the turn."""
        running = [node for node in _all(self.nodes) if node.running]
        for node in running:
            node.running = False
        parent = running[-1] if running else self._turn
        self._crashed = Node(Line(line.at, Mark.CRASH, KILLED))
        (self.nodes if parent is None else parent.below).append(self._crashed)

    def _shift(self, line: Line | None) -> None:
        """Show a shift only if it continues after a crash: at the line of the crash."""
        if line is not None and self._crashed is not None:
            self._crashed.line = dataclasses.replace(self._crashed.line, detail=f"{line.detail} goes on")
        self._crashed = None

    def _saga(self, event: Event, line: Line) -> None:
        done = event.kind == r.SAGA_DONE
        node = self._by_key.get(event.key) or self._add(event, line)
        took = event.at - node.line.at if done else None
        mark = Mark.DONE if done else Mark.NOTE
        node.line = dataclasses.replace(node.line, text=plain_key(event.key), mark=mark, took=took, detail="saga")
        node.open = not done
        parts, name = split_key(event.key)
        self._by_key["/".join([*parts, name])] = node

    def _note(self, event: Event, line: Line) -> None:
        """Any other record. Records with a key share a node; a record without one gets its own."""
        line = dataclasses.replace(line, text=line.text.strip())
        node = self._by_key.get(event.key) if event.key else None
        if node is None:
            node = self._add(event, line)
        elif event.kind == r.ARTIFACT:
            node.below.append(Node(line))
        else:
            node.line = line
        if event.kind in {r.STEP_WAITS, r.DOUBTED, r.PARKED, r.QUARANTINED}:
            node.open, node.running = event.kind == r.STEP_WAITS, False
        elif event.kind != r.UNDOING:
            node.open = node.running = False

    def _end(self, record: r.Record) -> None:
        self.ended, self.until, self._turn = True, record.at, None
        self.state, self.why = record.kind.removeprefix("task."), ""
        for node in _all(self.nodes):
            node.open = node.running = False
            if node.line.command:
                node.line = dataclasses.replace(node.line, command="")
        if record.kind != r.FAILED and self.nodes and self.nodes[-1].line.text in {"completed", "cancelled"}:
            self.nodes.pop()  # the head of the tree shows it

    def _add(self, event: Event, line: Line, *, turn: bool = False) -> Node:
        node = Node(line)
        path, _ = split_key(event.key)
        home = self._home(path)
        if turn:
            self._turn = node
            home = self.nodes
        elif home is None:
            home = self.nodes if self._turn is None or event.kind in r.ENDS else self._turn.below
        home.append(node)
        self._by_seq[event.seq] = node
        if event.key:
            self._by_key[event.key] = node
        return node

    def _home(self, path: list[str]) -> list[Node] | None:
        """The nodes of the innermost saga of this path."""
        for end in range(len(path), 0, -1):
            node = self._by_key.get("/".join(path[:end]).partition("@")[0])
            if node is not None:
                return node.below
        return None


def _price(call: dict[str, Any]) -> str:
    """The tokens and the cost of a model call."""
    usage = value if isinstance(value := call.get("usage"), dict) else {}
    counts = [n for n in (usage.get("input"), usage.get("output")) if isinstance(n, int)]
    cost = call.get("cost")
    tokens = [f"{sum(counts):,} tokens"] if counts else []
    return " ".join([*tokens, f"${cost:,.4f}"] if isinstance(cost, int | float) else tokens)


def _all(nodes: list[Node]) -> list[Node]:
    """These nodes and all below them, without those of other tasks."""
    return [descendant for node in nodes for descendant in (node, *_all(node.below))]
