"""Lists handlers: their names, and the inputs that they take. A part of the service.

Handlers of this process are known from its code. Handlers of other processes are known from the registration that a worker wrote when
it started, as long as the database keeps it. A handler that no living worker has is listed too: its tasks would wait.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from onward.core import wire
from onward.core.views import HandlerView
from onward.service.submission import HandlerSpec
from onward.store.port.core import Store


class Handlers:
    """Lists handlers."""

    def __init__(self, store: Store, specs: Mapping[str, HandlerSpec]) -> None:
        self._store, self._specs = store, specs

    async def list(self) -> list[HandlerView]:
        """All handlers, by name."""
        registrations = await self._registered() | self._own(self._specs)
        now, _ = await self._store.overview.held()
        versions: dict[str, list[str]] = {}
        for worker in await self._store.workers.list():
            for name in worker.names if worker.lease_until > now else ():
                versions.setdefault(name, []).append(worker.version)
        return [self._view(name, registrations[name], versions.get(name, [])) for name in sorted(registrations)]

    async def attempts(self, names: Collection[str]) -> dict[str, int]:
        """How often tasks of these names are tried, where the registration says it."""
        registrations = self._own(names)
        if registrations.keys() < set(names):
            registrations = await self._registered() | registrations
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

    async def _registered(self) -> dict[str, Mapping[str, Any]]:
        return {name: wire.decode(data) for name, data in (await self._store.handlers.registered()).items()}

    def _view(self, name: str, registration: Mapping[str, Any], versions: Sequence[str]) -> HandlerView:
        schema = dict(registration.get("input", {}))
        return HandlerView(
            name=name,
            doc=str(registration.get("doc", schema.get("description", ""))),
            schema=schema,
            kind="agent" if registration.get("agent") else "task",
            queue=str(registration.get("queue", "default")),
            here=name in self._specs,
            workers=len(versions),
            version=max(versions, default=None),
        )
