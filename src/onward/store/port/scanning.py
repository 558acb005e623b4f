"""Scanning: every row of every table, for whoever looks for something that must not be there. A port of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Look = Callable[[str, Mapping[str, Any]], None]
"""Called with the name of a table and a row of it, by the names of its columns. In a thread, where the store works in one."""


class Scanning(Protocol):
    """A store that shows all it has."""

    async def scan(self, look: Look) -> None:
        """Show every row of every table of ours, one after the other, whatever tables there are."""
        ...
