"""The port of the handlers that workers have registered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Handlers(Protocol):
    """Handlers of all workers, by name."""

    async def register(self, handlers: Sequence[tuple[str, bytes]]) -> None:
        """Store names of handlers, and the description of each."""
        ...

    async def registered(self) -> dict[str, bytes]:
        """The descriptions of all handlers that were ever registered, by name."""
        ...
