"""Sessions of the OpenAI Agents SDK on the database of an app.

A document has the items of one `add_items`. Its key is the id of the session and a number, so documents are in the order in which they
were added.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from agents.memory import SessionSettings

from onward.errors import OnwardError
from onward.integrations.bridge import App, Bridge
from onward.store.shared.documents import Collection, key, parts_of, span

COLLECTION = "openai_agents.session"

NUMBER_DIGITS = 12
"""Digits of the number of a document, so that keys are in the order of numbers."""

MAX_ADD_ATTEMPTS = 20
"""How often `add_items` looks for the next free number, when others add to the same session."""

REMEMBERED_ADDS = 100
"""Documents at the end of a session among which a step that is repeated looks for its own."""

EFFECTS: ContextVar[Iterator[str] | None] = ContextVar("onward_session_effects", default=None)
"""Names for the writes of a step of a run, the same when the step is repeated."""


class _Added(NamedTuple):
    """The items of one `add_items`."""

    by: str
    """The name of the write: from the step that added them, or a random one."""
    items: list[Any]

    def encode(self) -> bytes:
        return json.dumps(list(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> _Added:
        return cls(*json.loads(data))


class OnwardSession:
    """The history of a conversation, in the database of an app.

        result = await Runner.run(agent, "Hello", session=OnwardSession(app, "customer 7"))

    In the handler of a task, the reads and writes of a run are steps, and no crash adds an item twice. Sessions of a `tenant` are apart from
    those of others. `session_settings` are those of the SDK.
    """

    def __init__(
        self,
        app: App,
        session_id: str,
        *,
        tenant: str | None = None,
        session_settings: SessionSettings | None = None,
    ) -> None:
        self.session_id: str = session_id
        self.session_settings: SessionSettings | None = session_settings or SessionSettings()
        self._bridge = Bridge(app)
        self._documents: Collection = app.store.documents.of(COLLECTION, tenant)
        self._span = span(session_id)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The items, the oldest first; with `limit`, the last ones."""
        limit = getattr(self.session_settings, "limit", None) if limit is None else limit
        return await self._bridge.run(self._last(limit))

    async def add_items(self, items: Sequence[Any]) -> None:
        """Add items at the end."""
        if items:
            effects = EFFECTS.get()
            name = os.urandom(16).hex() if effects is None else next(effects)
            await self._bridge.run(self._add(_Added(name, list(items))))

    async def pop_item(self) -> Any:
        """Remove the last item and return it; None when there is none."""
        return await self._bridge.run(self._pop())

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._bridge.run(self._documents.drop(self._span))

    async def _last(self, limit: int | None) -> list[Any]:
        items: list[Any] = []
        if limit is not None and limit <= 0:
            return items
        async for _, added in self._from_the_end():
            items[:0] = added.items
            if limit is not None and len(items) >= limit:
                return items[-limit:]
        return items

    async def _add(self, added: _Added) -> None:
        seen = 0
        async for _, other in self._from_the_end():
            if other.by == added.by:  # an earlier shift added them, and died before it could tell
                return
            seen += 1
            if seen == REMEMBERED_ADDS:
                break
        for _ in range(MAX_ADD_ATTEMPTS):
            place = await self._next_place()
            await self._documents.write({}, adds={place: added.encode()})
            stored = (await self._documents.read([place])).get(place)
            if stored is not None and _Added.decode(stored).by == added.by:
                return
        raise OnwardError(f"others add to the session {self.session_id!r} at the same time; try again")

    async def _next_place(self) -> str:
        last = await self._documents.last(self._span)
        number = 0 if last is None else int(parts_of(last[0])[-1])
        return key(self.session_id, f"{number + 1:0{NUMBER_DIGITS}}")

    async def _pop(self) -> Any:
        async for place, added in self._from_the_end():
            *items, last = added.items
            if items:
                await self._documents.write({place: added._replace(items=items).encode()})
            else:
                await self._documents.write({}, drops=[place])
            return last
        return None

    async def _from_the_end(self) -> AsyncIterator[tuple[str, _Added]]:
        async for place, data in self._documents.scan(self._span, back=True):
            yield place, _Added.decode(data)
