"""A conversation: turns in order, each of them whole. The calls of a model always have their results beside them.

A conversation holds references to messages and their sizes, not the messages: each message is written once, and a conversation of
three hundred turns is a list of references. Strict providers refuse a history in which a call has no result or a result no call;
a `Conversation` cannot hold such a history.
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
    """Of a result that shows a part of an artifact: a short form without that part, for a request without room for it."""


@dataclasses.dataclass(slots=True)
class Turn:
    """One message of a person, or one reply of the model with the results of all its calls."""

    message: Ref
    calls: tuple[str, ...] = ()
    """The ids of the calls, in order."""
    results: dict[str, Ref] = dataclasses.field(default_factory=dict)

    @property
    def open(self) -> tuple[str, ...]:
        """Calls that have no result yet."""
        return tuple(call for call in self.calls if call not in self.results)

    @property
    def messages(self) -> tuple[Ref, ...]:
        """The message, and the results in the order of the calls."""
        return (self.message, *(self.results[call] for call in self.calls if call in self.results))

    @property
    def bytes(self) -> int:
        """Bytes that a model call spends on it."""
        return self.message.bytes + sum(ref.bytes for ref in self.results.values())


class Conversation:
    """The turns so far, without those that a summary has replaced."""

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self.turns: list[Turn] = list(turns)

    @property
    def bytes(self) -> int:
        """The size of all turns."""
        return sum(turn.bytes for turn in self.turns)

    def add(self, message: Ref, calls: Sequence[ToolCall] = ()) -> None:
        """Begin a turn with a message, and the calls in it. The caller first gives a result to each open call."""
        if self.turns and self.turns[-1].open:
            raise UsageError(f"the calls {', '.join(self.turns[-1].open)} have no result yet")
        self.turns.append(Turn(message, tuple(call.id for call in calls)))

    def add_result(self, call_id: str, result: Ref) -> None:
        """Add the result of a call of the last turn. A second result of a call is ignored."""
        if not self.turns or call_id not in self.turns[-1].calls:
            raise UsageError(f"there is no call {call_id!r} in the last turn")
        self.turns[-1].results.setdefault(call_id, result)

    def shown(self, max_bytes: int, max_artifact_bytes: int | None = None) -> tuple[list[Ref], int]:
        """The messages of the latest turns that fit into `max_bytes`, in whole turns, and the number of turns before them. At most
        `max_artifact_bytes` of them show artifacts, the latest; the other results with artifacts come in their brief form."""
        brief = self._brief(max_artifact_bytes) if max_artifact_bytes is not None else {}
        refs = [(brief.get(ref, ref), number) for number, turn in enumerate(self.turns) for ref in turn.messages]
        shown = conversation_slice([MessageSize(ref, ref.bytes, number) for ref, number in refs], max_bytes)
        return [message.ref for message in shown.messages], shown.turns_left_out

    def _brief(self, room: int) -> dict[Ref, Ref]:
        """The brief forms of the results with artifacts for which there is no room, by the result that each replaces."""
        brief: dict[Ref, Ref] = {}
        for ref in (ref for turn in reversed(self.turns) for ref in reversed(turn.messages)):
            if ref.brief is not None and ref not in brief:
                room -= ref.bytes
                if room < 0:
                    brief[ref] = ref.brief
        return brief

    def count_fitting(self, max_bytes: int) -> int:
        """How many of the latest turns fit into `max_bytes`; at least one, however large it is."""
        return len(self.turns) - self.shown(max_bytes)[1]

    def replace_older(self, latest: int, summary: Ref) -> None:
        """Replace all but the `latest` turns by a summary."""
        self.turns = [Turn(summary), *self.turns[len(self.turns) - latest :]]


# ── pages: turns as they are stored ──────────────────────────────────────────────────────────────────────────────────


def encode_page(turns: Iterable[Turn]) -> bytes:
    """Turns as one page."""
    return wire.encode([_turn_to_json(turn) for turn in turns])


def decode_page(page: bytes) -> list[Turn]:
    """The turns of a page."""
    return [
        Turn(Ref(name, size), tuple(calls), {call: _ref_from_json(*ref) for call, ref in results.items()})
        for name, size, calls, results in wire.decode(page)
    ]


def _turn_to_json(turn: Turn) -> list[Any]:
    results = {call: _ref_to_json(ref) for call, ref in turn.results.items()}
    return [turn.message.id, turn.message.bytes, list(turn.calls), results]


def _ref_to_json(ref: Ref) -> list[Any]:
    return [ref.id, ref.bytes] if ref.brief is None else [ref.id, ref.bytes, ref.brief.id, ref.brief.bytes]


def _ref_from_json(name: str, size: int, *brief: Any) -> Ref:
    return Ref(name, size, Ref(*brief) if brief else None)


def turns_from_messages(messages: Iterable[tuple[Ref, Message]]) -> list[Turn]:
    """Well-formed messages as turns."""
    turns: list[Turn] = []
    for ref, message in messages:
        if message["role"] == "tool":
            turns[-1].results[str(message["tool_call_id"])] = ref
        else:
            turns.append(Turn(ref, tuple(str(call["id"]) for call in message.get("tool_calls", ()))))
    return turns


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def result_message(call_id: str, text: str) -> dict[str, Any]:
    """The message with the result of a call."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def excerpt(text: str, max_bytes: int, artifact: str | None = None) -> str:
    """A string in at most `max_bytes`: whole, or its beginning and its end (in whole lines where they fit) and a note where the rest is."""
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return data.decode()
    lines = text.count("\n") + 1
    where = "" if artifact is None else f"; read more of it with read_artifact({artifact!r})"
    note = f"\n… ({len(data):,} bytes in {lines:,} lines{where}) …\n"
    room = max(max_bytes - len(note.encode()), 0)
    head = _whole_lines(cut(text, room * 2 // 3), "\n")
    tail_room = room - len(head.encode())
    tail = data[len(data) - tail_room :].decode("utf-8", "ignore") if tail_room > 0 else ""
    first, newline, rest = tail.partition("\n")
    return cut(head + note + (rest if newline and rest else first), max_bytes)


def _whole_lines(text: str, end: str) -> str:
    at = text.rfind(end)
    return text[:at] if at > len(text) // 2 else text.removesuffix("…")
