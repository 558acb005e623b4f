"""Feeds: the records or updates of a task, in order, over as many connections as it takes.

Each item has a number, and every connection begins after the last item that came through whole: none is missing and none comes twice.
Where the server has no streams, or a proxy breaks them, the client reads pages instead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from onward.client.script import Item, NextChunk, Response, Step
from onward.client.sending import BaseClient
from onward.client.sse import MEDIA, Event, EventParser
from onward.core import wire

T = TypeVar("T")
Parse = Callable[[dict[str, Any]], T]

SILENCE_S = 45.0
"""Seconds of silence after which the client takes a stream for dead. A server without news sends a sign of life more often."""
NO_MORE = 204
"""The status of a feed whose end the client has seen."""
ACCEPT = f"{MEDIA}, application/json;q=0.5".encode()


class Outcome(NamedTuple):
    """The outcome of one connection: how many items came, and whether the server ended it."""

    items: int
    whole: bool


class Feed(Generic[T]):
    """A feed, and the number of the last item that came."""

    def __init__(self, client: BaseClient, path: str, query: Mapping[str, Any], after: int) -> None:
        self._client, self._path, self._query = client, path, query
        self.after: int = after

    def read(self, parse: Parse[T]) -> Generator[Step | Item[T], Any, Outcome]:
        """All items that come over one connection."""
        response = yield from self._client._call(
            "GET",
            self._path,
            query={**self._query, "after": self.after},
            headers={"Accept": ACCEPT},
            hold_s=SILENCE_S,
            streams=True,
        )
        if response.status == NO_MORE:
            return Outcome(0, whole=True)
        read_body = self._read_stream if response.media == MEDIA else self._read_page
        return (yield from read_body(response, parse))

    def _read_stream(self, _response: Response, parse: Parse[T]) -> Generator[Step | Item[T], Any, Outcome]:
        count, events = 0, EventParser()
        while isinstance(chunk := (yield NextChunk()), bytes):
            for event in events.feed(chunk):
                if self._is_next(event):
                    count += 1
                    yield Item(parse({"seq": self.after, **wire.decode(event.data.encode())}))
        return Outcome(count, chunk is None)

    def _is_next(self, event: Event) -> bool:
        """Whether an event is the next item. Events without a number, or of another kind, are for live views: text that a model is
        still writing."""
        if event.kind != "message" or not event.id.isdecimal() or int(event.id) <= self.after:
            return False
        self.after = int(event.id)
        return True

    def _read_page(self, response: Response, parse: Parse[T]) -> Generator[Step | Item[T], Any, Outcome]:
        records = response.json["records"]
        for record in records:
            self.after = record["seq"]
            yield Item(parse(record))
        return Outcome(len(records), whole=True)
