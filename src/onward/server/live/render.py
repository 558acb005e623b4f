"""Encodes what a follower gets of its tasks, and finds where it goes on. Pure: records in, bytes out. A stream and a WebSocket
differ only in their encoder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from onward.core.journal.progress import ModelText, Only, ProgressReader, Update
from onward.core.record import ENDS, Record
from onward.errors import OnwardError
from onward.service.serialize import iso, record_json
from onward.store.port.follow import Head

_CURSOR = re.compile(r"[0-9]{1,15}(,[0-9]{1,15})*")


class Encoder(Protocol):
    """Encodes records: as messages of an SSE stream, or of a WebSocket."""

    def update(self, update: Update, cursor: str) -> bytes:
        """A progress update."""
        ...

    def record(self, task_id: str, record: Record, cursor: str) -> bytes:
        """A record of the journal."""
        ...

    def text(self, piece: ModelText) -> bytes:
        """A piece of the text that a model is generating."""
        ...

    def cursor(self, cursor: str) -> bytes:
        """The line in front of a message that moves the client's cursor and shows it nothing."""
        ...

    def reset(self, about: Mapping[str, Any], cursor: str) -> bytes:
        """A notice that the client may have missed something."""
        ...


class View:
    """The tasks of one follower, and its position in each. Pure: records in, bytes out."""

    def __init__(
        self,
        encoder: Encoder,
        cursors: Mapping[str, int],
        readers: Mapping[str, ProgressReader] | None,
        ended: Iterable[str] = (),
        *,
        only: Only | None = None,
    ) -> None:
        """`only` says which updates the readers give."""
        self.only: Only | None = only
        self.encoder, self.cursors, self._readers = encoder, dict(cursors), None if readers is None else dict(readers)
        self.ended = set(ended)
        self._dropped: set[str] = set()

    @property
    def cursor(self) -> str:
        """Its position, for `id:`."""
        return ",".join(map(str, self.cursors.values()))

    @property
    def over(self) -> bool:
        """Whether all of its tasks have ended."""
        return len(self.ended) == len(self.cursors)

    def sign_of_life(self, comment: bytes) -> bytes:
        """A comment. Where the follower does not get all updates, it has the cursor, so that a client which comes back does not begin far
        behind."""
        cursor = self.encoder.cursor(self.cursor) if self.only is not None else b""
        return cursor + comment

    def add(self, task_id: str, reader: ProgressReader, after: int = 0) -> None:
        """Add a task."""
        assert self._readers is not None
        self.cursors[task_id], self._readers[task_id] = after, reader

    def drop(self, task_id: str) -> None:
        """Remove a task."""
        assert self._readers is not None
        self.ended.discard(task_id)
        del self.cursors[task_id], self._readers[task_id]

    def encode(self, task_id: str, record: Record) -> Iterator[bytes]:
        """The messages to send for one record."""
        yield from self._dropped_before(task_id, record)
        self.cursors[task_id] = record.seq
        (self.ended.add if record.kind in ENDS else self.ended.discard)(task_id)
        if self._readers is None:
            yield self.encoder.record(task_id, record, self.cursor)
            return
        reader = self._readers[task_id]
        update = reader.read(record)
        for withdrawn in reader.withdrawn():
            yield self.encoder.text(withdrawn)
        if update is not None:
            yield self.encoder.update(update, self.cursor)

    def _dropped_before(self, task_id: str, record: Record) -> Iterator[bytes]:
        """A `reset` at the first record whose data a checkpoint has dropped."""
        if task_id not in self._dropped and (number := _dropped(record)):
            self._dropped.add(task_id)
            about = {"task_id": task_id, "reason": "dropped", "checkpoint": number, "after": self.cursors[task_id]}
            yield self.encoder.reset(about, self.cursor)

    def texts(self) -> Iterator[bytes]:
        """The text that models are generating, since the last call."""
        for reader in (self._readers or {}).values():
            if (piece := reader.new_text()) is not None:
                yield self.encoder.text(piece)


def _dropped(record: Record) -> int:
    with contextlib.suppress(OnwardError, ValueError, KeyError, TypeError):
        return record.dropped
    return 0


class SseEncoder:
    """Updates and records as server-sent events."""

    def update(self, update: Update, cursor: str) -> bytes:
        return _sse_message(_update_bytes(update), cursor)

    def record(self, task_id: str, record: Record, cursor: str) -> bytes:
        return _sse_json({"task_id": task_id, **record_json(record)}, cursor)

    def text(self, piece: ModelText) -> bytes:
        return _sse_json(text_json(piece), name="text")

    def cursor(self, cursor: str) -> bytes:
        return f"id: {cursor}\n".encode()

    def reset(self, about: Mapping[str, Any], cursor: str) -> bytes:
        return _sse_json(about, cursor, "reset")


class SseEncoderWithoutCursor(SseEncoder):
    """Server-sent events without a cursor: a client that reconnects begins anew."""

    def update(self, update: Update, cursor: str) -> bytes:  # noqa: ARG002 -- this encoder sends none
        return _sse_json({**update_json(update), "seq": update.seq})

    def cursor(self, cursor: str) -> bytes:  # noqa: ARG002
        return b""

    def reset(self, about: Mapping[str, Any], cursor: str) -> bytes:  # noqa: ARG002
        return _sse_json(about, name="reset")


def update_json(update: Update) -> dict[str, Any]:
    """A progress update as JSON."""
    fields = update._asdict()
    del fields["seq"], fields["ask"], fields["data"]
    fields["time"] = iso(update.time)
    return fields | ({"ask_id": update.ask} if update.ask else {}) | ({"data": update.data} if update.data else {})


def text_json(piece: ModelText) -> dict[str, Any]:
    """A piece of a model's text as JSON."""
    fields = piece._asdict()
    return fields if fields.pop("withdrawn") is False else {**fields, "withdrawn": True}


def to_json_bytes(value: Any) -> bytes:
    """JSON in one line. Lone surrogates are replaced."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


@functools.lru_cache(1024)
def _update_bytes(update: Update) -> bytes:
    """Cached: all followers of a task get the same update."""
    return to_json_bytes(update_json(update))


def _sse_json(value: Any, cursor: str | None = None, name: str = "") -> bytes:
    return _sse_message(to_json_bytes(value), cursor, name)


def _sse_message(data: bytes, cursor: str | None = None, name: str = "") -> bytes:
    number = "" if cursor is None else f"id: {cursor}\n"
    head = f"event: {name}\n" if name else ""
    return b"%b%bdata: %b\n\n" % (number.encode(), head.encode(), data)


# ── where to begin ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(slots=True)
class Position:
    """Where a client goes on, and the `reset` that it gets first, if any."""

    cursors: dict[str, int]
    reset: dict[str, Any] | None = None
    ended: frozenset[str] = frozenset()
    """Tasks whose end the client has seen."""

    @property
    def over(self) -> bool:
        """Whether the client has seen all events, and no more will come."""
        return len(self.ended) == len(self.cursors)


def find_position(heads: Mapping[str, Head], cursor: str | None) -> Position:
    """The position for a cursor that a client sent. A cursor that is invalid, of another stream, or ahead of the journal (the
    database was set back) begins anew, with a `reset`."""
    beginning = dict.fromkeys(heads, 0)
    if not cursor:
        return Position(beginning)
    numbers = [int(part) for part in cursor.split(",")] if _CURSOR.fullmatch(cursor) else []
    if len(numbers) != len(heads):
        return Position(beginning, {"reason": "unknown"})
    cursors = dict(zip(heads, numbers, strict=True))
    if any(cursors[task_id] > head.seq for task_id, head in heads.items()):
        return Position(beginning, {"reason": "ahead"})
    ended = frozenset(task_id for task_id, head in heads.items() if head.kind in ENDS and cursors[task_id] == head.seq)
    return Position(cursors, ended=ended)
