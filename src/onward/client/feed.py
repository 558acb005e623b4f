"""Feeds: what a task tells, one thing after the other, over as many connections as it takes.

Each thing has a number, and every connection begins after the last one that came through whole: so none is missing and none
comes twice. Where the server has no streams, or somebody in between spoils them, pages are read instead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from onward.client.script import Answer, Found, Listen, Step
from onward.client.sending import Asking
from onward.client.sse import MEDIA, Event, Events
from onward.core import wire

T = TypeVar("T")
Said = dict[str, Any]

SILENCE = 45.0
"""Seconds without a sign after which we take a stream for dead; a server that has nothing to say says so more often."""
NO_MORE = 204
"""What a server says to those who have seen the end."""
ACCEPT = f"{MEDIA}, application/json;q=0.5".encode()


class Heard(NamedTuple):
    """What one connection came to: how many things, and whether the server ended it."""

    things: int
    whole: bool


class Feed(Generic[T]):
    """A feed, and the number of the last thing that was found in it."""

    def __init__(self, client: Asking, path: str, query: Mapping[str, Any], after: int) -> None:
        self._client, self._path, self._query, self.after = client, path, query, after

    def heard(self, read: Callable[[Said], T]) -> Generator[Step | Found[T], Any, Heard]:
        """Whatever comes over one connection."""
        answer = yield from self._client.asked(
            "GET",
            self._path,
            query={**self._query, "after": self.after},
            headers={"Accept": ACCEPT},
            held=SILENCE,
            listens=True,
        )
        if answer.status == NO_MORE:
            return Heard(0, whole=True)
        told = self._streamed if answer.media == MEDIA else self._paged
        return (yield from told(answer, read))

    def _streamed(self, _answer: Answer, read: Callable[[Said], T]) -> Generator[Step | Found[T], Any, Heard]:
        count, events = 0, Events()
        while isinstance(piece := (yield Listen()), bytes):
            for event in events.read(piece):
                if self._is_next(event):
                    count += 1
                    yield Found(read({"seq": self.after, **wire.decode(event.data.encode())}))
        return Heard(count, piece is None)

    def _is_next(self, event: Event) -> bool:
        """What has no number, or another name, is for those who watch with their eyes: what a model is just saying."""
        if event.kind != "message" or not event.id.isdecimal() or int(event.id) <= self.after:
            return False
        self.after = int(event.id)
        return True

    def _paged(self, answer: Answer, read: Callable[[Said], T]) -> Generator[Step | Found[T], Any, Heard]:
        records = answer.json["records"]
        for record in records:
            self.after = record["seq"]
            yield Found(read(record))
        return Heard(len(records), whole=True)
