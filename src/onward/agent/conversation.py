"""A conversation: turns in order, each of them whole. What a model asked for always has its results beside it.

A conversation holds no text of its own, only where each message is and how large: a message is written once, and a
conversation of three hundred turns is a list of references. Strict providers refuse a history in which a call has no result
or a result no call; here such a history cannot be built.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from onward.agent.model import Message, ToolCall
from onward.core import wire
from onward.core.slice import MessageSize, conversation_slice, cut
from onward.errors import UsageError


@dataclasses.dataclass(frozen=True, slots=True)
class Ref:
    """A message that is stored elsewhere: its id, and how many bytes a model call spends on it."""

    id: str
    bytes: int
    brief: Ref | None = None
    """For what shows a part of an artifact: the same without it, for when there is no room for so much of artifacts."""


@dataclasses.dataclass(slots=True)
class Turn:
    """What one side said: a person, or the model together with the results of all calls that it asked for."""

    said: Ref
    calls: tuple[str, ...] = ()
    """The ids of the calls, in order."""
    results: dict[str, Ref] = dataclasses.field(default_factory=dict)

    @property
    def open(self) -> tuple[str, ...]:
        """Calls that have no result yet."""
        return tuple(call for call in self.calls if call not in self.results)

    @property
    def messages(self) -> tuple[Ref, ...]:
        """What was said, and the results in the order of the calls."""
        return (self.said, *(self.results[call] for call in self.calls if call in self.results))

    @property
    def bytes(self) -> int:
        """What it costs to show it."""
        return self.said.bytes + sum(ref.bytes for ref in self.results.values())


class Conversation:
    """The turns so far, but for those that a summary has taken the place of."""

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self.turns: list[Turn] = list(turns)

    @property
    def bytes(self) -> int:
        """The size of all turns."""
        return sum(turn.bytes for turn in self.turns)

    def say(self, said: Ref, calls: Sequence[ToolCall] = ()) -> None:
        """Somebody said something. What was still open before it is closed first, by whoever knows how."""
        if self.turns and self.turns[-1].open:
            raise UsageError(f"the calls {', '.join(self.turns[-1].open)} have no result yet")
        self.turns.append(Turn(said, tuple(call.id for call in calls)))

    def answer(self, call_id: str, result: Ref) -> None:
        """The result of a call of the last turn; the first one counts."""
        if not self.turns or call_id not in self.turns[-1].calls:
            raise UsageError(f"there is no call {call_id!r} in the last turn")
        self.turns[-1].results.setdefault(call_id, result)

    def shown(self, most: int, artifacts: int | None = None) -> tuple[list[Ref], int]:
        """The latest turns that fit into so many bytes, whole, and how many turns before them are left out. Of artifacts there
        are at most `artifacts` bytes in them, the latest; the others are told briefly."""
        brief = self._brief(artifacts) if artifacts is not None else {}
        refs = [(brief.get(ref, ref), number) for number, turn in enumerate(self.turns) for ref in turn.messages]
        said = [MessageSize(ref, ref.bytes, number) for ref, number in refs]
        found = conversation_slice(said, most)
        return [one.ref for one in found.messages], found.turns_left_out

    def _brief(self, room: int) -> dict[Ref, Ref]:
        """What takes the place of those parts of artifacts for which there is no room."""
        told: dict[Ref, Ref] = {}
        for ref in (ref for turn in reversed(self.turns) for ref in reversed(turn.messages)):
            if ref.brief is not None and ref not in told:
                room -= ref.bytes
                if room < 0:
                    told[ref] = ref.brief
        return told

    def lately(self, most: int) -> int:
        """How many of the latest turns fit into so many bytes; one at least, however large it is."""
        return len(self.turns) - self.shown(most)[1]

    def sum_up(self, latest: int, summary: Ref) -> None:
        """All but the latest turns are told by a summary from now on."""
        self.turns = [Turn(summary), *self.turns[len(self.turns) - latest :]]


# ── pages: turns as they are stored ──────────────────────────────────────────────────────────────────────────────────


def page_of(turns: Iterable[Turn]) -> bytes:
    """Turns as one page."""
    return wire.encode([_told(turn) for turn in turns])


def turns_on(page: bytes) -> list[Turn]:
    """The turns of a page."""
    return [
        Turn(Ref(name, size), tuple(calls), {call: _ref(*ref) for call, ref in results.items()})
        for name, size, calls, results in wire.decode(page)
    ]


def _told(turn: Turn) -> list[Any]:
    results = {call: told_ref(ref) for call, ref in turn.results.items()}
    return [turn.said.id, turn.said.bytes, list(turn.calls), results]


def told_ref(ref: Ref) -> list[Any]:
    """A reference as it is stored."""
    return [ref.id, ref.bytes] if ref.brief is None else [ref.id, ref.bytes, ref.brief.id, ref.brief.bytes]


def _ref(name: str, size: int, *brief: Any) -> Ref:
    return Ref(name, size, Ref(*brief) if brief else None)


def turns_of(messages: Iterable[tuple[Ref, Message]]) -> list[Turn]:
    """Messages that are well formed, as turns."""
    turns: list[Turn] = []
    for ref, message in messages:
        if message["role"] == "tool":
            turns[-1].results[str(message["tool_call_id"])] = ref
        else:
            turns.append(Turn(ref, tuple(str(call["id"]) for call in message.get("tool_calls", ()))))
    return turns


# ── what goes over the wire ──────────────────────────────────────────────────────────────────────────────────────────


def result_message(call_id: str, text: str) -> dict[str, Any]:
    """The result of a call."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def unpaired(messages: Iterable[Message]) -> list[str]:
    """What a strict provider would refuse: calls without a result right after them, and results without a call."""
    faults: list[str] = []
    waiting: dict[str, None] = {}
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                faults.append(f"a result for {message.get('tool_call_id')!r}, which nobody asked for here")
            waiting.pop(message.get("tool_call_id", ""), None)
            continue
        faults += [f"no result for {call!r}" for call in waiting]
        waiting = dict.fromkeys(str(call["id"]) for call in message.get("tool_calls", ()))
    return faults + [f"no result for {call!r}" for call in waiting]


def excerpt(text: str, most: int, artifact: str | None = None) -> str:
    """The beginning and the end of a text that is too long to be shown, in whole lines where they fit, and where the rest is."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    lines = text.count("\n") + 1
    where = "" if artifact is None else f"; read more of it with read_artifact({artifact!r})"
    note = f"\n… ({len(data):,} bytes in {lines:,} lines{where}) …\n"
    room = max(most - len(note.encode()), 0)
    head = _whole_lines(cut(text, room * 2 // 3), "\n")
    tail_room = room - len(head.encode())
    tail = data[len(data) - tail_room :].decode("utf-8", "ignore") if tail_room > 0 else ""
    first, newline, rest = tail.partition("\n")
    return cut(head + note + (rest if newline and rest else first), most)


def _whole_lines(text: str, end: str) -> str:
    at = text.rfind(end)
    return text[:at] if at > len(text) // 2 else text.removesuffix("…")
