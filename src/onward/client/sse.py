"""Server-sent events: parses bytes into events, as the standard defines it for browsers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MEDIA = "text/event-stream"


class Event(NamedTuple):
    """One event: the last id that was sent, its kind, and its data."""

    id: str
    kind: str
    data: str


class EventParser:
    """Parses events from chunks of any size. An event that is not ended by an empty line is dropped."""

    def __init__(self) -> None:
        self._rest, self._id, self._kind = b"", "", ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that this chunk completes."""
        self._rest += chunk
        # A lone CR at the end may be the first half of a CRLF.
        whole = self._rest.removesuffix(b"\r")
        *lines, rest = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = rest + self._rest[len(whole) :]
        for line in lines:
            if (event := self._line(line.decode("utf-8", "replace"))) is not None:
                yield event

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._end()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
            case "event":
                self._kind = value
            case "id" if "\0" not in value:
                self._id = value
        return None

    def _end(self) -> Event | None:
        kind, data, self._kind, self._data = self._kind or "message", self._data, "", []
        return Event(self._id, kind, "\n".join(data)) if data else None
