"""Journals for people: as a waterfall, record by record, and turn by turn. A part of the service."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from onward.core import wire
from onward.core.journal.turns import asked_in, is_call, is_output, model_call, named_in, none_such, spoken
from onward.core.journal.waterfall import Bar, Point, Waterfall
from onward.core.record import STEP_DONE, SUBMITTED, Record, payload
from onward.core.text import short
from onward.errors import NotFound, OnwardError, TaskNotFound
from onward.store.port.core import Store

PAGE = 1000
CHILDREN = 1000
"""Children that are asked how they ended, where the journal does not say so."""
BEFORE = 200
"""Records before a tool's output in which the turn that asked for it is looked for."""
WORDS = 200
"""Characters of what a model said that a list shows."""


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """A journal as a waterfall, or what of it changed after a record."""

    task_id: str
    began: float
    ended: float | None
    seq: int
    """The last record that is in it."""
    bars: list[Bar]
    marks: list[Point]


@dataclasses.dataclass(frozen=True, slots=True)
class RecordView:
    """One record, and what it is about."""

    record: Record
    input: Any = None
    output: Any = None
    error: dict[str, Any] | None = None
    attempts: int | None = None
    effect_key: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class TurnView:
    """A turn of an agent, in a few words. Times are seconds since 1970; None is unknown."""

    turn: int
    seq: int
    at: float
    took_s: float | None
    model: str
    finish: str | None
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    text: str
    """How its answer begins."""
    tools: tuple[str, ...]
    """The tools that it asked for."""


class Turn(NamedTuple):
    """All of a turn: exactly what the model saw, and what it said."""

    view: TurnView
    messages: list[dict[str, Any]]
    reply: dict[str, Any]


class Timelines:
    """All verbs about them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self, task_id: str) -> list[Record]:
        """The whole journal. Raises TaskNotFound."""
        records: list[Record] = []
        while len(page := await self._store.journal(task_id, records[-1].seq if records else 0, PAGE)) == PAGE:
            records += page
        records += page
        if not records:
            raise TaskNotFound(task_id)
        return records

    async def timeline(self, task_id: str, after: int = 0) -> Timeline:
        """The journal as a waterfall; with `after`, only what has changed since that record. Raises TaskNotFound."""
        fall, seq = Waterfall(), 0
        while page := await self._store.journal(task_id, seq, PAGE):
            for record in page:
                fall.read(record)
            seq = page[-1].seq
            if len(page) < PAGE:
                break
        if fall.began is None:
            raise TaskNotFound(task_id)
        if open_ := set(fall.children()):
            for child in await self._store.listing.list(limit=CHILDREN, before=None, parent=task_id):
                if child.task_id in open_ and child.ended:
                    fall.child_ended(child.task_id, child.state, child.finished_at)
        bars = sorted((bar for bar in fall.bars if bar.last > after or bar.end is None), key=_place)
        return Timeline(task_id, fall.began, fall.ended, seq, bars, [mark for mark in fall.marks if mark.seq > after])

    async def record(self, task_id: str, seq: int) -> RecordView:
        """One record, with what went in and what came out. Raises NotFound."""
        found = await self._store.journal(task_id, max(0, seq - 1), 1)
        if seq < 1 or not found or found[0].seq != seq:
            raise NotFound(f"task {task_id} has no record {seq}; its journal may not be there yet")
        record = found[0]
        value = payload(record)
        said = value if isinstance(value, dict) else {}
        if record.kind == SUBMITTED:
            task = await self._store.get(task_id)
            return RecordView(record, None if task is None else task.input)
        if not record.key:
            return RecordView(record, output=said.get("result"), error=_error(said))
        given, result = None, said.get("result")
        if record.kind == STEP_DONE and isinstance(result, dict) and is_call(result):
            given, result = await self._call(task_id, result)
        elif record.kind == STEP_DONE and isinstance(result, dict) and is_output(result):
            given, result = await self._output(task_id, record, result)
        error = _error(said)
        attempts = said.get("attempts", said.get("attempt", (error or {}).get("attempts")))
        if attempts is None and record.kind == STEP_DONE:
            attempts = 1
        return RecordView(record, given, result, error, attempts, f"{task_id}:{record.key}")

    async def _call(self, task_id: str, result: dict[str, Any]) -> tuple[Any, Any]:
        messages = spoken(result, await self._store.contents(task_id, named_in(result)))
        return messages[:-1], messages[-1]

    async def _output(self, task_id: str, record: Record, result: dict[str, Any]) -> tuple[Any, Any]:
        """What a tool was called with, as its model asked for it, and what it gave."""
        kept = await self._store.contents(task_id, [result["id"]])
        told = wire.decode(kept[result["id"]]) if result["id"] in kept else None
        if not isinstance(told, dict):
            return None, told
        before = await self._store.journal(task_id, max(0, record.seq - BEFORE), BEFORE)
        for one in reversed([one for one in before if one.seq < record.seq]):
            if call := model_call(one):
                reply = (await self._store.contents(task_id, [call["id"]])).get(call["id"])
                for wanted in (wire.decode(reply) if reply else {}).get("tool_calls") or ():
                    if wanted.get("id") == told.get("tool_call_id"):
                        return _arguments(wanted), told.get("content")
        return None, told.get("content")

    async def turns(self, task_id: str, after: int = 0, limit: int = 100) -> list[TurnView]:
        """The turns of an agent after a number, in order. Raises TaskNotFound."""
        asked = asked_in(await self.all(task_id))
        some = [asked[number] for number in sorted(asked) if number > after][:limit]
        replies = await self._store.contents(task_id, [said["id"] for _, said in some]) if some else {}
        return [_turn(record, said, replies.get(said["id"])) for record, said in some]

    async def turn(self, task_id: str, number: int) -> Turn:
        """Exactly what the model saw and said in a turn. Raises TaskNotFound, NotFound."""
        records: Sequence[Record] = await self.all(task_id)
        asked = asked_in(records)
        if number not in asked:
            raise NotFound(none_such(task_id, records, number))
        record, said = asked[number]
        kept = await self._store.contents(task_id, named_in(said))
        *messages, reply = spoken(said, kept)
        return Turn(_turn(record, said, kept.get(said["id"])), messages, reply)


def _place(bar: Bar) -> tuple[float, int]:
    return bar.start, bar.depth


def _turn(record: Record, said: dict[str, Any], reply: bytes | None) -> TurnView:
    message = wire.decode(reply) if reply is not None else {}
    usage = said.get("usage") or {}
    took = record.value.get("ms")
    calls = message.get("tool_calls") or ()
    return TurnView(
        turn=said["turn"],
        seq=record.seq,
        at=record.at,
        took_s=took / 1000 if isinstance(took, int | float) else None,
        model=str(said["asked"].get("model", "")),
        finish=said.get("finish"),
        input_tokens=usage.get("input"),
        output_tokens=usage.get("output"),
        cost_usd=said.get("cost"),
        text=short(" ".join(str(message.get("content") or "").split()), WORDS),
        tools=tuple(str(one["function"]["name"]) for one in calls),
    )


def _arguments(wanted: dict[str, Any]) -> Any:
    text = wanted.get("function", {}).get("arguments")
    try:
        return wire.decode(text.encode()) if isinstance(text, str) else text
    except (OnwardError, ValueError):
        return text


def _error(said: dict[str, Any]) -> dict[str, Any] | None:
    error = said.get("error")
    return error if isinstance(error, dict) else None
