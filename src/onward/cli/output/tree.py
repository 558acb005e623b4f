"""A journal as a tree that grows: turns, steps, waits, and what happened inside of them. Pure: records in, nodes out.

The words are those of the story (timeline.py); here each thing has one node, which changes as it goes on. Shifts are not shown:
what people follow is the work. A shift that broke off is, in the step where it did.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onward.cli.output.text import safe, short
from onward.cli.output.timeline import Line, Mark, Story
from onward.core import record as r
from onward.core.journal.open_waits import plain_key, split_key
from onward.core.journal.progress import tool_of
from onward.core.journal.turns import model_call
from onward.core.usage import Usage, of_call, restored
from onward.service.serialize import payload

SILENT = frozenset({r.SUBMITTED, r.SHIFT, r.HANDED_BACK, r.PATCHED, r.HEARD, r.CHECKPOINT, r.VERSION})
"""Records that change nothing that is shown."""

WAITS = frozenset({r.SLEEP, r.SIGNAL, r.QUESTION, r.APPROVAL, r.CHILD})
RUNS = frozenset({r.STEP_STARTED, r.ANNOUNCED})
DETAIL = 200
ID = 26
"""Characters of an id."""

SUBMIT = "submit "
"""How the names of steps begin that start a child."""


@dataclasses.dataclass(slots=True)
class Node:
    """Something of a task: its newest line, whether it is open, since when, and what happened inside."""

    line: Line
    open: bool = False
    running: bool = False
    below: list[Node] = dataclasses.field(default_factory=list)
    tree: Tree | None = None
    """The child task that it is."""

    @property
    def busy(self) -> bool:
        """Whether anything in it is still open."""
        return self.open or any(node.busy for node in self.below) or (self.tree is not None and not self.tree.ended)

    @property
    def size(self) -> int:
        """How many lines are below it."""
        more = 0 if self.tree is None else sum(1 + node.size for node in self.tree.nodes)
        return more + sum(1 + node.size for node in self.below)


class Tree:
    """One task. Read its records in order; `nodes` is what to show."""

    def __init__(self, task_id: str, name: str = "") -> None:
        self.task_id, self.name = task_id, name
        self.story = Story(task_id)
        self.nodes: list[Node] = []
        self.children: list[Tree] = []
        """The tasks below it that are shown."""
        self.seq = 0
        """The number of the last record that was read."""
        self.usage = Usage()
        self.turns = 0
        self.ended = False
        self.until: float | None = None
        """When it ended."""
        self.state = "pending"
        self.why = ""
        self._keyed: dict[str, Node] = {}
        self._numbered: dict[int, Node] = {}
        self._made: dict[str, Node] = {}
        """Steps that gave an id, by that id: one of them may have started a child."""
        self._turn: Node | None = None
        self._patched = False
        self._broken: Node | None = None

    # ── children ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def running(self) -> bool:
        """Whether a step of it, or of a task below it, is known to run."""
        return self.story.step is not None or any(child.running for child in self.children)

    @property
    def children_started(self) -> int:
        """How many steps of it say that they started one."""
        return len(self._made)

    def has_child(self, child: Tree, at: float) -> None:
        """Show a child where it was started."""
        node = self._made.get(child.task_id)
        if node is None:
            node = Node(Line(at, Mark.NOTE, ""))
            self.nodes.append(node)
        node.tree = child
        self.children.append(child)
        for other in (self.nodes, *(one.below for one in _all(self.nodes))):  # the wait for it says nothing more
            other[:] = [one for one in other if one.line.key != f"child:{child.task_id}"]

    @property
    def usage_of_all(self) -> Usage:
        """What it and all below it took of models."""
        found = self.usage
        for child in self.children:
            found += child.usage_of_all
        return found

    @property
    def turns_of_all(self) -> int:
        """Turns of it and of all below it."""
        return self.turns + sum(child.turns_of_all for child in self.children)

    # ── records ──────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, record: r.Record) -> None:
        """One more record."""
        self.seq = record.seq
        lines = self.story.tell(record)
        if lines and lines[0].mark is Mark.CRASH:
            self._crash(lines.pop(0))
        line = lines[0] if lines else None
        self._patched |= record.kind == r.PATCHED
        value = payload(record)
        said = value if isinstance(value, dict) else {}
        self._account(record, said)
        if record.kind in RUNS:
            self._runs(record)
        elif record.kind == r.STEP_DONE:
            self._done(record, said, line)
        elif record.kind in WAITS:
            self._waits(record, said, line)
        elif record.kind in {r.SLEPT, r.WAITED}:
            self._waited(record, line)
        elif record.kind == r.PROGRESS:
            self._progress(said)
        elif record.kind == r.MESSAGE and (node := self._numbered.get(_number(said.get("ref")))) is not None:
            self._answered(node, line)
        elif record.kind == r.STEP_RETRY:
            self._retry(record, said, line)
        elif record.kind == r.SHIFT:
            self._shift(line)
        elif record.kind == r.MESSAGE and said.get("kind") == "child":
            pass  # the child itself is shown
        elif record.kind in {r.SAGA, r.SAGA_DONE} and line is not None:
            self._saga(record, line)
        elif line is not None and record.kind not in SILENT:
            self._tell(record, line)
        if record.kind in r.ENDS:
            self._end(record)

    def _account(self, record: r.Record, said: dict[str, Any]) -> None:
        if record.kind == r.CHECKPOINT and "value" in said:
            self.usage = restored(said["value"], self.task_id)
        elif record.kind == r.STEP_DONE and not record.dropped:
            self.usage += of_call(said.get("result"), self.task_id)

    def _name(self, key: str) -> str:
        """Of the calls of one turn it does not matter which was made as the how-manieth."""
        return plain_key(key) if self._turn is None else safe(tool_of(key))

    def _runs(self, record: r.Record) -> None:
        node = self._keyed.get(record.key)
        if node is None:
            model = tool_of(record.key) == "model" and self._is_agent
            line = Line(record.at, Mark.BEGIN, f"turn {self.turns + 1}" if model else self._name(record.key))
            node = self._add(record, line, turn=model)
        node.line = dataclasses.replace(node.line, at=record.at, mark=Mark.BEGIN, detail="", command="")
        node.open = node.running = True

    @property
    def _is_agent(self) -> bool:
        """An agent has patched its state before it asks for the first time, or has asked before."""
        return self.turns > 0 or self._patched

    def _done(self, record: r.Record, said: dict[str, Any], line: Line | None) -> None:
        asked = model_call(record)
        node = self._keyed.get(record.key)
        if line is None:
            return
        if asked is not None:
            self.turns = asked.get("turn", self.turns + 1)
            line = dataclasses.replace(line, text=f"turn {self.turns}", detail=_price(asked))
            node = node or self._add(record, line, turn=True)
            self._turn = node
        else:
            line = dataclasses.replace(line, text=self._name(record.key))
            node = node or self._add(record, line)
        node.line, node.open, node.running = line, False, False
        result = said.get("result")
        if isinstance(result, str) and len(result) == ID and tool_of(record.key).startswith(SUBMIT):
            self._made[result] = node

    def _retry(self, record: r.Record, said: dict[str, Any], line: Line | None) -> None:
        """Each attempt that failed is a line of its own, below the step."""
        node = self._keyed.get(record.key) or self._add(record, Line(record.at, Mark.BEGIN, self._name(record.key)))
        if line is not None:
            text = f"attempt {safe(said.get('attempt', '?'))} failed"
            node.below.append(Node(dataclasses.replace(line, text=text)))
        node.open, node.running = True, False
        node.line = dataclasses.replace(node.line, mark=Mark.AGAIN)

    def _waits(self, record: r.Record, said: dict[str, Any], line: Line | None) -> None:
        if line is None:
            return
        key = f"child:{said.get('child')}" if record.kind == r.CHILD else ""
        if key and any(node.tree for node in (self._made.get(str(said.get("child"))),) if node):
            return
        node = self._add(record, dataclasses.replace(line, text=line.text.strip(), key=key or line.key))
        node.open = True

    def _waited(self, record: r.Record, line: Line | None) -> None:
        node = self._keyed.get(record.key)
        if node is None:
            return
        late = line is not None and line.mark is Mark.AGAIN
        told = node.line.detail if record.kind == r.WAITED else ""
        told = line.text.strip() if late and line is not None else told
        node.line = dataclasses.replace(
            node.line, mark=Mark.AGAIN if late else Mark.DONE, took=record.at - node.line.at, detail=told, command=""
        )
        node.open = False

    def _answered(self, node: Node, line: Line | None) -> None:
        """What somebody said to a wait, beside it."""
        if line is not None:
            told = " ".join(part for part in (line.text, line.detail) if part)
            node.line = dataclasses.replace(node.line, detail=told, command="")

    def _progress(self, said: dict[str, Any]) -> None:
        """What an agent says of a turn stands beside it."""
        if self._turn is None or "turn" not in said or "tools" in said or "text" in said:
            return
        told = [self._turn.line.detail, short(said.get("message", ""), DETAIL)]
        self._turn.line = dataclasses.replace(self._turn.line, detail="  ".join(part for part in told if part))

    def _crash(self, line: Line) -> None:
        running = [node for node in _all(self.nodes) if node.running]
        self._broken = running[-1] if running else None
        for node in running:
            node.running = False
        said = "the worker was killed or lost its lease"
        self._inside(self._broken).append(Node(Line(line.at, Mark.CRASH, said)))

    def _shift(self, line: Line | None) -> None:
        """Only one that goes on where another broke off is told."""
        last = self._inside(self._broken)
        if line is not None and last and last[-1].line.mark is Mark.CRASH:
            last[-1].line = dataclasses.replace(last[-1].line, detail=f"{line.detail} goes on")
        self._broken = None

    def _inside(self, node: Node | None) -> list[Node]:
        return node.below if node is not None else self._turn.below if self._turn is not None else self.nodes

    def _saga(self, record: r.Record, line: Line) -> None:
        done = record.kind == r.SAGA_DONE
        node = self._keyed.get(record.key) or self._add(record, line)
        took = record.at - node.line.at if done else None
        mark = Mark.DONE if done else Mark.NOTE
        node.line = dataclasses.replace(node.line, text=plain_key(record.key), mark=mark, took=took, detail="saga")
        node.open = not done
        self._keyed["/".join([*split_key(record.key)[0], split_key(record.key)[1]])] = node

    def _tell(self, record: r.Record, line: Line) -> None:
        """Anything else: a thing with a name has one node, the rest are notes."""
        line = dataclasses.replace(line, text=line.text.strip())
        node = self._keyed.get(record.key) if record.key else None
        if node is None:
            node = self._add(record, line)
        elif record.kind == r.ARTIFACT:
            node.below.append(Node(line))
        else:
            node.line = line
        if record.kind in {r.STEP_WAITS, r.DOUBTED, r.PARKED, r.QUARANTINED}:
            node.open, node.running = record.kind == r.STEP_WAITS, False
        elif record.kind != r.UNDOING:
            node.open = node.running = False

    def _end(self, record: r.Record) -> None:
        self.ended, self.until, self._turn = True, record.at, None
        self.state, self.why = record.kind.removeprefix("task."), ""
        for node in _all(self.nodes):
            node.open = node.running = False
            if node.line.command:
                node.line = dataclasses.replace(node.line, command="")
        if record.kind != r.FAILED and self.nodes and self.nodes[-1].line.text in {"completed", "cancelled"}:
            self.nodes.pop()  # the head of the tree says it

    def _add(self, record: r.Record, line: Line, *, turn: bool = False) -> Node:
        node = Node(line)
        path, _ = split_key(record.key)
        home = self._home(path)
        if turn:
            self._turn = node
            home = self.nodes
        elif home is None:
            home = self.nodes if self._turn is None or record.kind in r.ENDS else self._turn.below
        home.append(node)
        self._numbered[record.seq] = node
        if record.key:
            self._keyed[record.key] = node
        return node

    def _home(self, path: list[str]) -> list[Node] | None:
        """The saga that it is in."""
        for end in range(len(path), 0, -1):
            node = self._keyed.get("/".join(path[:end]).partition("@")[0])
            if node is not None:
                return node.below
        return None


def _price(asked: dict[str, Any]) -> str:
    """What a turn took, in a few words."""
    usage = found if isinstance(found := asked.get("usage"), dict) else {}
    counts = [n for n in (usage.get("input"), usage.get("output")) if isinstance(n, int)]
    cost = asked.get("cost")
    told = [f"{sum(counts):,} tokens"] if counts else []
    return " ".join([*told, f"${cost:,.4f}"] if isinstance(cost, int | float) else told)


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _all(nodes: list[Node]) -> list[Node]:
    """These and all below them, but for other tasks."""
    return [one for node in nodes for one in (node, *_all(node.below))]
