"""Reads journals for people: as a waterfall, record by record, and turn by turn. A part of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from onward.core import wire
from onward.core.journal.turns import CallReader, content_ids, is_call, is_output, messages_of, missing_turn, model_call
from onward.core.journal.waterfall import Waterfall, position
from onward.core.record import STEP_DONE, SUBMITTED, Record, payload
from onward.core.text import short
from onward.core.views import RecordView, Timeline, TurnView
from onward.errors import NotFound, OnwardError, TaskNotFound
from onward.store.port.core import Store
from onward.store.port.listing import TINY_BYTES
from onward.store.port.paging import PAGE_BYTES, PAGE_RECORDS, journal_pages, whole_journal

MAX_CHILDREN = 1000
"""Children whose end is read from their rows, where the journal does not have it."""
CALL_SEARCH_RECORDS = 200
"""Records before the output of a tool in which its model call is searched."""
MAX_REASON_CHARS = 10_000
"""Characters of a reply that are shown beside the approval that it asked for."""
MAX_REPLY_CHARS = 200
"""Characters of the model's reply that a list of turns shows."""
MAX_BARS = 10_000
"""Bars and marks after which a timeline reads no further page of the journal. The rest is for the next request."""
BAR_BYTES = 250
"""Bytes of a bar as JSON without its name and text, about."""


class Turn(NamedTuple):
    """A turn as a whole: the messages that the model got, and its reply."""

    view: TurnView
    messages: list[dict[str, Any]]
    reply: dict[str, Any]
    usage: dict[str, Any] | None = None
    """The tokens that the provider reported."""


class Timelines:
    """Reads journals."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self, task_id: str) -> list[Record]:
        """The whole journal in memory, for a task that is known to be short. Raises TaskNotFound."""
        records = await whole_journal(self._store.journal, task_id)
        if not records:
            raise TaskNotFound(task_id)
        return records

    def pages(self, task_id: str) -> AsyncIterator[list[Record]]:
        """The whole journal in pages of a bounded number of bytes; none for a task that does not exist."""
        return journal_pages(self._store.journal, task_id)

    async def timeline(self, task_id: str, after: int = 0) -> Timeline:
        """The journal as a waterfall; with `after`, only the bars and marks that changed after that record. It ends where they are so
        many that they are enough for one response (`more`). Raises TaskNotFound."""
        waterfall, more = Waterfall(), False
        async for page in journal_pages(self._store.journal, task_id, 0, PAGE_RECORDS):
            for record in page:
                waterfall.read(record)
            waterfall.forget(min(after, waterfall.seq))
            if more := page.next is not None and waterfall.seq > after and _is_enough(waterfall):
                break
        if waterfall.began is None:
            raise TaskNotFound(task_id)
        bars = sorted((bar for bar in waterfall.bars if bar.last > after or bar.end is None), key=position)
        if open_children := set(waterfall.children()):
            for child in await self._store.listing.list(
                limit=MAX_CHILDREN, before=None, parent=task_id, most=TINY_BYTES
            ):
                if child.task_id in open_children and child.ended:
                    waterfall.child_ended(child.task_id, child.state, child.finished_at)
        marks = [mark for mark in waterfall.marks if mark.seq > after]
        return Timeline(task_id, waterfall.began, waterfall.ended, waterfall.seq, bars, marks, more)

    async def record(self, task_id: str, seq: int) -> RecordView:
        """One record, with its input and output. Raises NotFound."""
        records = await self._store.journal(task_id, max(0, seq - 1), 1)
        if seq < 1 or not records or records[0].seq != seq:
            raise NotFound(f"task {task_id} has no record {seq}; its journal may not be there yet")
        record = records[0]
        value = payload(record)
        fields = value if isinstance(value, dict) else {}
        if record.kind == SUBMITTED:
            task = await self._store.get(task_id)
            return RecordView(record, None if task is None else task.input)
        if not record.key:
            return RecordView(record, output=fields.get("result"), error=_error(fields))
        input_, result = None, fields.get("result")
        if record.kind == STEP_DONE and isinstance(result, dict) and is_call(result):
            input_, result = await self._model_call(task_id, result)
        elif record.kind == STEP_DONE and isinstance(result, dict) and is_output(result):
            input_, result = await self._tool_call(task_id, record, result)
        error = _error(fields)
        attempts = fields.get("attempts", fields.get("attempt", (error or {}).get("attempts")))
        if attempts is None and record.kind == STEP_DONE:
            attempts = 1
        return RecordView(record, input_, result, error, attempts, f"{task_id}:{record.key}")

    async def _model_call(self, task_id: str, result: dict[str, Any]) -> tuple[Any, Any]:
        messages = messages_of(result, await self._store.contents(task_id, content_ids(result)))
        return messages[:-1], messages[-1]

    async def _tool_call(self, task_id: str, record: Record, result: dict[str, Any]) -> tuple[Any, Any]:
        """The arguments of a tool call, as the model wrote them, and the output of the tool."""
        contents = await self._store.contents(task_id, [result["id"]])
        message = wire.decode(contents[result["id"]]) if result["id"] in contents else None
        if not isinstance(message, dict):
            return None, message
        asked = await asking_turn(self._store, task_id, record.seq, message.get("tool_call_id"))
        return None if asked is None else _arguments(asked.tool_call), message.get("content")

    async def turns(self, task_id: str, after: int = 0, limit: int = 100) -> list[TurnView]:
        """The turns of an agent after a number, in order. Raises TaskNotFound."""
        page = (await self._calls(task_id, after, limit)).first()
        replies = await self._store.contents(task_id, [call["id"] for _, call in page]) if page else {}
        return [_turn(record, call, replies.get(call["id"])) for record, call in page]

    async def turn(self, task_id: str, number: int) -> Turn:
        """The messages that the model got in a turn, and its reply. Raises TaskNotFound, NotFound."""
        calls = await self._calls(task_id, number - 1, 1)
        if number not in calls.calls:
            raise NotFound(missing_turn(task_id, calls, number))
        record, call = calls.calls[number]
        contents = await self._store.contents(task_id, content_ids(call))
        *messages, reply = messages_of(call, contents)
        return Turn(_turn(record, call, contents.get(call["id"])), messages, reply, call.get("usage"))

    async def _calls(self, task_id: str, after: int, most: int) -> CallReader:
        """The model calls of the first turns after a number. Raises TaskNotFound."""
        calls, empty = CallReader(after, most), True
        async for page in journal_pages(self._store.journal, task_id):
            empty = False
            for record in page:
                calls.read(record)
        if empty:
            raise TaskNotFound(task_id)
        return calls


class AskingTurn(NamedTuple):
    """The turn of an agent that asked for a tool call."""

    turn: int
    text: str | None
    """The beginning of what the model wrote beside its calls."""
    tool_call: dict[str, Any]


async def asking_turn(store: Store, task_id: str, seq: int, call_id: Any) -> AskingTurn | None:
    """The turn whose reply has the tool call of this id, among the records shortly before a record; None if there is none."""
    page = await store.journal(task_id, max(0, seq - CALL_SEARCH_RECORDS), CALL_SEARCH_RECORDS)
    for earlier in reversed([earlier for earlier in page if earlier.seq < seq]):
        call = model_call(earlier)
        if not call:
            continue
        data = (await store.contents(task_id, [call["id"]])).get(call["id"])
        reply = wire.decode(data) if data else {}
        for tool_call in reply.get("tool_calls") or ():
            if tool_call.get("id") == call_id:
                text = reply.get("content")
                return AskingTurn(call["turn"], text[:MAX_REASON_CHARS] if isinstance(text, str) else None, tool_call)
    return None


def _is_enough(waterfall: Waterfall) -> bool:
    """Whether the bars and marks so far are enough for one response."""
    count = len(waterfall.bars) + len(waterfall.marks)
    texts = [bar.name + bar.text for bar in waterfall.bars] + [mark.text for mark in waterfall.marks]
    return count >= MAX_BARS or BAR_BYTES * count + sum(len(text.encode()) for text in texts) >= PAGE_BYTES


def _turn(record: Record, call: dict[str, Any], reply: bytes | None) -> TurnView:
    message = wire.decode(reply) if reply is not None else {}
    usage = call.get("usage") or {}
    took = record.value.get("ms")
    tool_calls = message.get("tool_calls") or ()
    return TurnView(
        turn=call["turn"],
        seq=record.seq,
        at=record.at,
        took_s=took / 1000 if isinstance(took, int | float) else None,
        model=str(call["asked"].get("model", "")),
        finish=call.get("finish"),
        input_tokens=usage.get("input"),
        output_tokens=usage.get("output"),
        cost_usd=call.get("cost"),
        text=short(" ".join(str(message.get("content") or "").split()), MAX_REPLY_CHARS),
        tools=tuple(str(tool_call["function"]["name"]) for tool_call in tool_calls),
    )


def _arguments(tool_call: dict[str, Any]) -> Any:
    arguments = tool_call.get("function", {}).get("arguments")
    try:
        return wire.decode(arguments.encode()) if isinstance(arguments, str) else arguments
    except (OnwardError, ValueError):
        return arguments


def _error(payload: dict[str, Any]) -> dict[str, Any] | None:
    error = payload.get("error")
    return error if isinstance(error, dict) else None
