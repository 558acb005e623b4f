"""The slice: the part of a state, and of a conversation, that a model call gets.

Both are chosen by size alone, in a fixed order of importance, so that the same state and the same budget always give the same slice. The
slice says what was left out. Sizes are UTF-8 bytes, because the tokens of a provider cannot be counted offline.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from onward.core.state import AgentState, ArtifactRef, Fact

MIN_SLICE_BYTES = 400
"""Bytes below which a slice is of no use."""

_NOTE_BYTES = 90
"""Bytes kept free for the line that says what was left out."""


class Slice(NamedTuple):
    """A string of at most the allowed bytes, and how many items of each kind are not in it."""

    text: str
    left_out: dict[str, int]


def state_slice(state: AgentState, most: int, step: str | None = None) -> Slice:
    """The part of a state that fits: goal and open questions always (cut if necessary), then flags and plan, then the artifacts of this step,
    the newest facts, and the other artifacts."""
    page = _Page(max(most, MIN_SLICE_BYTES) - _NOTE_BYTES)
    page.always("goal", [f"Goal: {state.goal}"], part=2)
    page.always("questions", [f"- {question}" for question in state.open_questions], part=2)
    page.fill("risk flags", [f"- {flag}" for flag in state.risk_flags])
    page.fill("steps of the plan", [f"{number}. {item}" for number, item in enumerate(state.plan, 1)])
    of_step = [artifact for artifact in state.artifacts if step is not None and artifact.step == step]
    others = [artifact for artifact in state.artifacts if step is None or artifact.step != step]
    page.fill("artifacts", map(_artifact, reversed(of_step)))
    page.fill("facts", map(_fact, reversed(state.known_facts)))
    page.fill("artifacts", map(_artifact, reversed(others)))
    return page.done()


class _Page:
    """Collects lines under headings, as long as there is room."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._lines: dict[str, list[str]] = {}
        self._left_out: dict[str, int] = {}

    def always(self, kind: str, lines: Iterable[str], part: int) -> None:
        """Add lines in at most the n-th `part` of the room; a line that is too long is cut."""
        room = self._room // part
        for line in lines:
            short = cut(line.replace("\n", " "), max(room - _heading(kind, self._lines), 0))
            if len(short) < 2:  # not even a letter and the dots
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                continue
            used = self._add(kind, short)
            room -= used

    def fill(self, kind: str, lines: Iterable[str]) -> None:
        """Add lines as far as they fit. After the first that does not fit, none follows: otherwise older items would seem newer."""
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


def _heading(kind: str, lines: dict[str, list[str]]) -> int:
    """Bytes of the heading, where it is not there yet."""
    return 0 if kind in lines or kind == "goal" else len(kind) + 2


def left_out_words(left_out: dict[str, int]) -> str:
    """The line that says what was left out. It always fits."""
    counts = ", ".join(f"{count} {kind}" for kind, count in left_out.items())
    return cut(f"(left out: {counts})", _NOTE_BYTES)


def _artifact(artifact: ArtifactRef) -> str:
    return f"- [{artifact.artifact_id}] {artifact.type}, {artifact.bytes:,} bytes: {artifact.summary}"


def _fact(fact: Fact) -> str:
    value = fact.value if isinstance(fact.value, str) else json.dumps(fact.value, ensure_ascii=False, default=str)
    return f"- {fact.key} = {value} ({fact.source})"


def _size(text: str) -> int:
    return len(text.encode())


def cut(text: str, most: int) -> str:
    """The string in at most `most` bytes, in whole characters, with dots where it was cut."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    return "" if most < len("…".encode()) else data[: most - len("…".encode())].decode("utf-8", "ignore") + "…"


# ── conversations ────────────────────────────────────────────────────────────────────────────────────────────────────


class MessageSize(NamedTuple):
    """One message of a conversation: a reference to it, and its size. The messages of one turn (the reply of the model, and all results of
    tools) share a number and are shown together or not at all."""

    ref: Any
    bytes: int
    turn: int


class Shown(NamedTuple):
    """The messages to show, in order, and how many turns before them are not shown."""

    messages: list[MessageSize]
    turns_left_out: int


def conversation_slice(messages: Sequence[MessageSize], most: int) -> Shown:
    """The latest whole turns that fit into `most` bytes. The last turn is always shown: without it the model has nothing to answer."""
    sizes: dict[int, int] = {}
    for message in messages:
        sizes[message.turn] = sizes.get(message.turn, 0) + message.bytes
    kept: set[int] = set()
    room = most
    for turn in sorted(sizes, reverse=True):
        if kept and sizes[turn] > room:
            break
        kept.add(turn)
        room -= sizes[turn]
    return Shown([message for message in messages if message.turn in kept], len(sizes) - len(kept))
