"""Lists handlers: their names, and the inputs that they take. A part of the service.

Handlers of this process are known from its code. Handlers of other processes are known from the registration that a worker wrote when
it started, as long as the database keeps it. A handler that no living worker has is listed too: its tasks would wait.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from onward.core import wire
from onward.core.page import Page, check_limit, every_item, fitting
from onward.core.views import HandlerView
from onward.service.submission import HandlerSpec
from onward.store.port.core import Store
from onward.store.port.listing import PAGE_BYTES
from onward.store.shared.workers import PAGE_HANDLERS

HandlerList = list[HandlerView]
Strings = list[str]
"""Names for types in a class whose method `list` hides the builtin."""


INTERNAL_ARGUMENTS = frozenset({"depth"})
"""Arguments of agents that only agents pass to each other: forms and tools leave them out."""


class Handlers:
    """Lists handlers."""

    def __init__(self, store: Store, specs: Mapping[str, HandlerSpec]) -> None:
        self._store, self._specs = store, specs

    async def page(self, *, limit: int = PAGE_HANDLERS, cursor: str | None = None) -> Page[HandlerView]:
        """A page of the handlers, by name; `next` is the cursor of the next page. Their schemas have about 4 MB together, so a page may
        have fewer than `limit`."""
        check_limit(limit, PAGE_HANDLERS)
        stored = await self._store.handlers.page(after=cursor or "", limit=limit)
        own = [name for name in self._specs if name > (cursor or "") and (stored.next is None or name <= stored.next)]
        registrations = {name: wire.decode(data) for name, data in stored} | self._own(own)
        known = sorted(registrations)
        views = await self._views({name: registrations[name] for name in known[:limit]})
        page = fitting(views, PAGE_BYTES, lambda view: len(wire.encode(view.schema)) + len(view.doc.encode()))
        more = len(page) < len(known) or stored.next is not None
        return Page(page, page[-1].name if more else None)

    async def _views(self, registrations: Mapping[str, Mapping[str, Any]]) -> Sequence[HandlerView]:
        now, _ = await self._store.overview.held()
        versions: dict[str, Strings] = {name: [] for name in registrations}
        for worker in await self._store.workers.list():
            for name in versions.keys() & worker.names if worker.lease_until > now else ():
                versions[name].append(worker.version)
        return [self._view(name, registration, versions[name]) for name, registration in registrations.items()]

    async def list(self) -> HandlerList:
        """The handlers of all pages, by name."""
        return await every_item(lambda cursor: self.page(cursor=cursor))

    async def attempts(self, names: Collection[str]) -> dict[str, int]:
        """How often tasks of these names are tried, where the registration says it."""
        registrations = self._own(names)
        if registrations.keys() < set(names):
            stored = await self._store.handlers.registered(sorted(set(names) - registrations.keys()))
            registrations |= {name: wire.decode(data) for name, data in stored.items()}
        return {
            name: registration["attempts"]
            for name, registration in registrations.items()
            if name in names and "attempts" in registration
        }

    def _own(self, names: Collection[str]) -> dict[str, Mapping[str, Any]]:
        return {
            name: spec.registration()
            for name, spec in self._specs.items()
            if name in names and spec.registration is not None
        }

    def _view(self, name: str, registration: Mapping[str, Any], versions: Sequence[str]) -> HandlerView:
        schema, agent = dict(registration.get("input", {})), bool(registration.get("agent"))
        if agent and isinstance(schema.get("properties"), dict):
            shown = {name: value for name, value in schema["properties"].items() if name not in INTERNAL_ARGUMENTS}
            schema["properties"] = shown
        return HandlerView(
            name=name,
            doc=str(registration.get("doc", schema.get("description", ""))),
            schema=schema,
            kind="agent" if agent else "task",
            queue=str(registration.get("queue", "default")),
            here=name in self._specs,
            workers=len(versions),
            version=max(versions, default=None),
        )
