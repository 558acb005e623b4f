"""The slice: the part of a state, and of a conversation, that a model call is shown.

Both are chosen by size alone, from what is most worth showing to what is least, so that the same state and the same budget
always give the same slice; and what was left out is said. Sizes are UTF-8 bytes: nobody can count another's tokens offline.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from onward.core.state import AgentState, ArtifactRef, Fact

SMALLEST = 400
"""Bytes below which there is no use in showing anything."""

_NOTE = 90
"""Bytes kept free for the line that says what was left out."""


class Slice(NamedTuple):
    """A text of at most the bytes that were allowed, and how many of each kind are not in it."""

    text: str
    left_out: dict[str, int]


def state_slice(state: AgentState, most: int, step: str | None = None) -> Slice:
    """Goal and open questions always (cut where they must be), then flags and plan, then the artifacts of this step, the
    freshest facts, and the other artifacts."""
    page = _Page(max(most, SMALLEST) - _NOTE)
    page.always("goal", [f"Goal: {state.goal}"], part=2)
    page.always("questions", [f"- {question}" for question in state.open_questions], part=2)
    page.fill("risk flags", [f"- {flag}" for flag in state.risk_flags])
    page.fill("steps of the plan", [f"{number}. {one}" for number, one in enumerate(state.plan, 1)])
    here = [one for one in state.artifacts if step is not None and one.step == step]
    elsewhere = [one for one in state.artifacts if step is None or one.step != step]
    page.fill("artifacts", map(_artifact, reversed(here)))
    page.fill("facts", map(_fact, reversed(state.known_facts)))
    page.fill("artifacts", map(_artifact, reversed(elsewhere)))
    return page.done()


class _Page:
    """Lines under headings, as long as there is room."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._lines: dict[str, list[str]] = {}
        self._left_out: dict[str, int] = {}

    def always(self, kind: str, lines: Iterable[str], part: int) -> None:
        """These come first, in at most the n-th part of the room; what is too long for it is cut."""
        room = self._room // part
        for line in lines:
            short = cut(line.replace("\n", " "), max(room - _heading(kind, self._lines), 0))
            if len(short) < 2:  # not even a letter and the dots
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                continue
            used = self._add(kind, short)
            room -= used

    def fill(self, kind: str, lines: Iterable[str]) -> None:
        """These as far as they go; after the first that does not fit, none follows, or older ones would pass for fresher."""
        full = False
        for line in lines:
            text = line.replace("\n", " ")
            full = full or _size(text) + 1 + _heading(kind, self._lines) > self._room
            if full:
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
            else:
                self._add(kind, text)

    def _add(self, kind: str, line: str) -> int:
        used = _size(line) + 1 + _heading(kind, self._lines)
        self._room -= used
        self._lines.setdefault(kind, []).append(line)
        return used

    def done(self) -> Slice:
        blocks = []
        for kind, lines in self._lines.items():
            head = [] if kind == "goal" else [f"{kind.capitalize()}:"]
            blocks += [*head, *lines]
        if self._left_out:
            blocks.append(left_out_words(self._left_out))
        return Slice("\n".join(blocks), self._left_out)


def _heading(kind: str, there: dict[str, list[str]]) -> int:
    return 0 if kind in there or kind == "goal" else len(kind) + 2


def left_out_words(left_out: dict[str, int]) -> str:
    """What is not shown, in a line that always fits."""
    said = ", ".join(f"{count} {kind}" for kind, count in left_out.items())
    return cut(f"(left out: {said})", _NOTE)


def _artifact(one: ArtifactRef) -> str:
    return f"- [{one.artifact_id}] {one.type}, {one.bytes:,} bytes: {one.summary}"


def _fact(fact: Fact) -> str:
    value = fact.value if isinstance(fact.value, str) else json.dumps(fact.value, ensure_ascii=False, default=str)
    return f"- {fact.key} = {value} ({fact.source})"


def _size(text: str) -> int:
    return len(text.encode())


def cut(text: str, most: int) -> str:
    """A text of at most so many bytes, whole characters, with dots where something is gone."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    return "" if most < len("…".encode()) else data[: most - len("…".encode())].decode("utf-8", "ignore") + "…"


# ── conversations ────────────────────────────────────────────────────────────────────────────────────────────────────


class Said(NamedTuple):
    """One message of a conversation as the slice sees it: where it is, and how large. The messages of one turn (what a
    model asked for, and all results) share a number and are shown together or not at all."""

    ref: Any
    bytes: int
    turn: int


class Shown(NamedTuple):
    """The messages to show, in order, and how many turns before them are not shown."""

    messages: list[Said]
    turns_left_out: int


def conversation_slice(said: Sequence[Said], most: int) -> Shown:
    """The latest turns that fit, whole. The last turn is shown however large it is: without it there is nothing to answer."""
    sizes: dict[int, int] = {}
    for one in said:
        sizes[one.turn] = sizes.get(one.turn, 0) + one.bytes
    kept: set[int] = set()
    room = most
    for turn in sorted(sizes, reverse=True):
        if kept and sizes[turn] > room:
            break
        kept.add(turn)
        room -= sizes[turn]
    return Shown([one for one in said if one.turn in kept], len(sizes) - len(kept))
