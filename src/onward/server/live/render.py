"""Telling: what a follower is told of its tasks, and from where. Pure: records in, bytes out; a stream and a socket differ in the
form of them alone."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from onward.core.journal.progress import ModelText, Teller, Update
from onward.core.record import ENDS, Record
from onward.errors import OnwardError
from onward.service.serialize import iso, record_json
from onward.store.port.follow import Head

_CURSOR = re.compile(r"[0-9]{1,15}(,[0-9]{1,15})*")


class Told(Protocol):
    """How records are told at a door: as lines of a stream, or as messages of a socket."""

    def update(self, update: Update, cursor: str) -> bytes:
        """One thing that happened."""
        ...

    def record(self, task_id: str, record: Record, cursor: str) -> bytes:
        """A record as it is."""
        ...

    def said(self, said: ModelText) -> bytes:
        """What a model is saying."""
        ...

    def reset(self, about: Mapping[str, Any], cursor: str) -> bytes:
        """That something which was there cannot be told."""
        ...


class View:
    """What one follower is told of its tasks, and where it is. Pure: records in, bytes out."""

    def __init__(
        self,
        told: Told,
        cursors: Mapping[str, int],
        tellers: Mapping[str, Teller] | None,
        ended: Iterable[str] = (),
    ) -> None:
        self.told, self.cursors, self._tellers = told, dict(cursors), None if tellers is None else dict(tellers)
        self.ended = set(ended)
        self._dropped: set[str] = set()

    @property
    def cursor(self) -> str:
        """Where it is, for `id:`."""
        return ",".join(map(str, self.cursors.values()))

    @property
    def over(self) -> bool:
        """Whether all of its tasks have ended."""
        return len(self.ended) == len(self.cursors)

    def add(self, task_id: str, teller: Teller, after: int = 0) -> None:
        """One task more."""
        assert self._tellers is not None
        self.cursors[task_id], self._tellers[task_id] = after, teller

    def drop(self, task_id: str) -> None:
        """One task less."""
        assert self._tellers is not None
        self.ended.discard(task_id)
        del self.cursors[task_id], self._tellers[task_id]

    def tell(self, task_id: str, record: Record) -> Iterator[bytes]:
        """What is sent about one record."""
        yield from self._dropped_before(task_id, record)
        self.cursors[task_id] = record.seq
        (self.ended.add if record.kind in ENDS else self.ended.discard)(task_id)
        if self._tellers is None:
            yield self.told.record(task_id, record, self.cursor)
            return
        teller = self._tellers[task_id]
        update = teller.tell(record)
        for void in teller.withdrawn():
            yield self.told.said(void)
        if update is not None:
            yield self.told.update(update, self.cursor)

    def _dropped_before(self, task_id: str, record: Record) -> Iterator[bytes]:
        """A word when we come to records of which a checkpoint took what they said."""
        if task_id not in self._dropped and (number := _dropped(record)):
            self._dropped.add(task_id)
            about = {"task_id": task_id, "reason": "dropped", "checkpoint": number, "after": self.cursors[task_id]}
            yield self.told.reset(about, self.cursor)

    def said(self) -> Iterator[bytes]:
        """What models are saying, when nothing else is to be told."""
        for teller in (self._tellers or {}).values():
            if (said := teller.said()) is not None:
                yield self.told.said(said)


def _dropped(record: Record) -> int:
    with contextlib.suppress(OnwardError, ValueError, KeyError, TypeError):
        return record.dropped
    return 0


class Lines:
    """Updates and records as events of a stream."""

    def update(self, update: Update, cursor: str) -> bytes:
        return _lines(_written(update), cursor)

    def record(self, task_id: str, record: Record, cursor: str) -> bytes:
        return _event({"task_id": task_id, **record_json(record)}, cursor)

    def said(self, said: ModelText) -> bytes:
        return _event(said_json(said), name="text")

    def reset(self, about: Mapping[str, Any], cursor: str) -> bytes:
        return _event(about, cursor, "reset")


class Unnumbered(Lines):
    """The same without a cursor: whoever comes back begins anew."""

    def update(self, update: Update, cursor: str) -> bytes:  # noqa: ARG002 -- it has none
        return _event({**update_json(update), "seq": update.seq})

    def reset(self, about: Mapping[str, Any], cursor: str) -> bytes:  # noqa: ARG002
        return _event(about, name="reset")


def update_json(update: Update) -> dict[str, Any]:
    """A progress update for programs."""
    told = update._asdict()
    del told["seq"], told["ask"]
    told["time"] = iso(update.time)
    return told | ({"ask_id": update.ask} if update.ask else {})


def said_json(said: ModelText) -> dict[str, Any]:
    """A piece of what a model says, for programs."""
    told = said._asdict()
    return told if told.pop("withdrawn") is False else {**told, "withdrawn": True}


def written(value: Any) -> bytes:
    """JSON in one line, whatever is in it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


@functools.lru_cache(1024)
def _written(update: Update) -> bytes:
    """The same update goes to all who follow its task."""
    return written(update_json(update))


def _event(value: Any, cursor: str | None = None, name: str = "") -> bytes:
    return _lines(written(value), cursor, name)


def _lines(data: bytes, cursor: str | None = None, name: str = "") -> bytes:
    number = "" if cursor is None else f"id: {cursor}\n"
    head = f"event: {name}\n" if name else ""
    return b"%b%bdata: %b\n\n" % (number.encode(), head.encode(), data)


# ── where to begin ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(slots=True)
class Start:
    """Where a reader goes on, and what it has to be told about that."""

    cursors: dict[str, int]
    reset: dict[str, Any] | None = None
    ended: frozenset[str] = frozenset()
    """Tasks of which it has seen the end."""

    @property
    def over(self) -> bool:
        """Whether it has seen all of it, and nothing more will come."""
        return len(self.ended) == len(self.cursors)


def start(heads: Mapping[str, Head], wanted: str | None) -> Start:
    """Where to go on for a cursor that somebody sent. Garbage, one of another stream, and one from the future (the database was
    set back) begin anew, and say so."""
    fresh = dict.fromkeys(heads, 0)
    if not wanted:
        return Start(fresh)
    numbers = [int(part) for part in wanted.split(",")] if _CURSOR.fullmatch(wanted) else []
    if len(numbers) != len(heads):
        return Start(fresh, {"reason": "unknown"})
    cursors = dict(zip(heads, numbers, strict=True))
    ended = frozenset(task_id for task_id, head in heads.items() if head.kind in ENDS and cursors[task_id] >= head.seq)
    if any(cursors[task_id] > head.seq for task_id, head in heads.items() if task_id not in ended):
        return Start(fresh, {"reason": "ahead"})
    return Start({task_id: min(cursors[task_id], head.seq) for task_id, head in heads.items()}, ended=ended)
