"""Journals as trees: each step has one node, and the tree is never larger than the terminal."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from onward.cli.output.tree import Tree
from onward.cli.output.tree_view import TreeView
from onward.core import record as r
from tests.cli.conftest import controls

TASK = "0" * 18 + "12345678"
CHILD = "c" * 26


class Journal:
    """A tree that reads records one by one."""

    def __init__(self, name: str = "order") -> None:
        self.tree = Tree(TASK, name)
        self._at = 1_000_000.0

    def tell(self, kind: str, key: str = "", /, after: float = 1.0, **fields: Any) -> Journal:
        self._at += after
        self.tree.read(r.Record(self.tree.seq + 1, 1, kind, key, json.dumps(fields).encode(), self._at))
        return self

    def begun(self) -> Journal:
        return self.tell(r.SUBMITTED).tell(r.SHIFT, worker="w" * 26)

    def shown(self, width: int = 100, height: int = 100, encoding: str = "utf-8") -> list[str]:
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        console = Console(file=stream, width=width, height=height, color_system=None, force_terminal=True)
        self.tree.state = "running" if not self.tree.ended else self.tree.state
        lines = TreeView(console, self.tree).lines(height, moving=False)
        assert all(line.cell_len < width for line in lines)
        assert len(lines) <= height
        return [line.plain.rstrip() for line in lines]

    def branches(self, **options: Any) -> list[str]:
        return self.shown(**options)[1:]


def test_a_step_has_one_line_and_each_attempt_that_failed_one_below():
    journal = Journal().begun()
    journal.tell(r.STEP_STARTED, "pay")
    assert "pay" in journal.branches()[0]
    journal.tell(r.STEP_RETRY, "pay", attempt=1, error={"type": "ConnectionError", "message": "away"}, due_at=0)
    assert next(line.split() for line in journal.branches()) == ["└─", "↻", "pay"]
    journal.tell(r.STEP_STARTED, "pay").tell(r.STEP_DONE, "pay", ms=1500, result="paid", attempts=2)
    done, attempt = journal.branches()
    assert done.split() == ["└─", "✓", "pay", "1.50", "s", '"paid"']
    assert attempt.split()[:6] == ["└─", "↻", "attempt", "1", "failed", "ConnectionError:"]


def test_a_crash_is_shown_in_its_step():
    journal = Journal().begun().tell(r.STEP_STARTED, "pay").tell(r.SHIFT, worker="v" * 26)
    journal.tell(r.STEP_STARTED, "pay")
    pay, crash = journal.branches()
    assert "pay" in pay
    assert "the worker was killed or lost its lease  worker vvvvvvvv goes on" in crash
    assert crash.startswith("   └─ ✗")


def model(turn: int, **more: Any) -> dict[str, Any]:
    request = {"system": "s", "shown": [], "model": "m"}
    usage = {"input": 100, "output": 20}
    return {
        "ms": 400,
        "result": {
            "turn": turn,
            "asked": request,
            "id": "i",
            "bytes": 1,
            "call": f"{TASK}:{turn}",
            "usage": usage,
            **more,
        },
    }


def agent() -> Journal:
    journal = Journal("janitor").begun().tell(r.PATCHED, "patch", state={"goal": "g"})
    journal.tell(r.STEP_STARTED, "model").tell(r.STEP_DONE, "model", **model(1, cost=0.0012))
    journal.tell(r.PROGRESS, message="I will look.", step=1, total=0, turn=1)
    journal.tell(r.PROGRESS, message="look, count", step=1, total=0, turn=1, tools=["look", "count"])
    journal.tell(r.STEP_DONE, "[gather.0]look", ms=1, result={"id": "i", "bytes": 70})
    return journal.tell(r.STEP_DONE, "[gather.1]count", ms=2, result={"id": "i", "bytes": 70})


def test_turns_have_their_calls_below_and_the_head_has_tokens_and_cost():
    journal = agent()
    head, turn, look, count = journal.shown()
    assert head.startswith("janitor  running")
    assert "1 turn · 120 tokens · $0.0012" in head
    assert turn.split("  ")[0] == "└─ ✓ turn 1"
    assert "120 tokens $0.0012  I will look." in turn
    assert look.startswith("   ├─ ✓ look ")
    assert count.startswith("   └─ ✓ count ")


def test_missing_usage_is_unknown():
    journal = agent().tell(r.STEP_STARTED, "model#2").tell(r.STEP_DONE, "model#2", **model(2, usage={}))
    assert "2 turns · tokens unknown" in journal.shown()[0]
    assert "$" not in journal.shown()[0]


def test_an_approval_has_the_command_until_it_is_decided():
    journal = agent().tell(r.APPROVAL, "approval", what="delete(" + "x" * 200 + ")", risk="write_local")
    seq = journal.tree.seq
    line = journal.branches(width=80)[-1]
    assert line.startswith("   └─ ! asks for approval: delete(")
    assert line.endswith(f"→ onward approve 12345678.{seq}"), "the command is never cut"
    journal.tell(r.MESSAGE, "", n=1, kind="decision", ref=seq, value={"decision": "approve", "by": "ada"})
    journal.tell(r.WAITED, "approval", n=1)
    decided = journal.branches(width=400)[-1]
    assert "✓ asks for approval" in decided
    assert decided.endswith("approved by ada")


def test_a_child_stands_where_it_was_started():
    journal = Journal().begun().tell(r.STEP_DONE, "submit invoice", ms=1, result=CHILD)
    journal.tell(r.CHILD, "child invoice", child=CHILD)
    assert journal.tree.children_started == 1
    child = Tree(CHILD, "invoice")
    child.state = "waiting"
    journal.tree.add_child(child, 0.0)
    child.read(r.Record(1, 0, r.SUBMITTED, "", b"{}", 1_000_000.0))
    child.read(r.Record(2, 1, r.STEP_DONE, "draw", b'{"ms": 10, "result": 1}', 1_000_001.0))
    assert [line.split()[:4] for line in journal.branches()] == [
        ["└─", "☾", "invoice", "waiting"],
        ["└─", "✓", "draw", "0.01"],
    ]


def test_steps_of_a_saga_stand_in_it():
    journal = Journal().begun().tell(r.SAGA, "trip").tell(r.STEP_DONE, "[trip]flight", ms=1, result="f")
    journal.tell(r.UNDOING, "trip", error={"type": "Fatal", "message": "no visa"})
    journal.tell(r.STEP_DONE, "[trip/undo]flight", ms=1, result=None)
    journal.tell(r.UNDONE, "trip", undone=["[trip]flight"])
    assert [line.strip(" │├└─").split("  ")[0] for line in journal.branches()] == [
        "↻ trip undone", "✓ flight", "✓ undo flight",
    ]  # fmt: skip


def test_the_bar():
    journal = Journal().begun().tell(r.PROGRESS, message="packing", step=1, total=4)
    bar = journal.shown()[1]
    assert bar == "━" * 7 + "─" * 21 + "  1/4  packing"
    assert journal.shown(encoding="ascii")[1] == "=" * 7 + "-" * 21 + "  1/4  packing"


def long(steps: int) -> Journal:
    journal = agent()
    for number in range(2, steps):
        journal.tell(r.STEP_STARTED, f"model#{number}").tell(r.STEP_DONE, f"model#{number}", **model(number))
        journal.tell(r.STEP_DONE, f"tool#{number}", ms=1, result={"id": "i", "bytes": 70})
    return journal


def test_ended_steps_are_folded_first_then_the_top_is_cut():
    shown = long(8).shown(height=14)
    assert len(shown) == 14
    assert shown[1].split()[1:4] == ["✓", "turn", "1"]
    assert "(2 lines)" in shown[1]
    shown = long(40).shown(height=14)
    assert shown[1].startswith("⋮  ")
    assert shown[1].endswith(" before: onward show 12345678")
    assert "tool#39" not in shown[-1], "a name without how often it came before"
    assert "turn 39" in shown[-1] or "turn 39" in shown[-2]
    assert len(long(400).shown(height=14)) == 14


KINDS = sorted(value for name, value in vars(r).items() if name.isupper() and isinstance(value, str))
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | st.booleans(), lambda v: st.lists(v, max_size=3)
)
FIELDS = st.dictionaries(
    st.sampled_from(
        ["result", "ref", "kind", "error", "turn", "message", "total", "step", "child", "until", "value", "text"]
    ),
    VALUES,
    max_size=5,
)
KEYS = st.sampled_from(
    ["", "a", "a#2", "[trip]a", "trip", "model", "submit x", "[gather.0]a", "[x/undo]a", "]", "[", "é\u202e"]
)


@pytest.mark.slow
@given(records=st.lists(st.tuples(st.sampled_from(KINDS), KEYS, FIELDS), max_size=25), width=st.integers(20, 120))
@settings(max_examples=200, deadline=None)
def test_any_journal_fits_the_terminal(records, width):
    journal = Journal("name\x1b[31m")
    for kind, key, fields in records:
        journal.tell(kind, key, **fields)
    for line in journal.shown(width=width, height=20):
        assert not controls(line)


@pytest.mark.parametrize("kind", [r.FAILED, r.COMPLETED, r.CANCELLED])
def test_nothing_is_open_in_a_task_that_has_ended(kind):
    journal = Journal().begun().tell(r.STEP_STARTED, "pay").tell(r.QUESTION, "ask", question="Which?")
    journal.tell(kind, error={"type": "E", "message": "m"})
    assert not any(node.busy for node in journal.tree.nodes)
    assert "onward answer" not in "\n".join(journal.shown())
