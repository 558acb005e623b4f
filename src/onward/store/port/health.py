"""The values of the checks (see `shared/health.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Faults = list[tuple[str, str]]
"""Ids of tasks, and what is wrong with each."""

Seen = Callable[[int], None]
"""Called with the number of records that were looked at so far."""

Look = Callable[[str, Mapping[str, Any]], None]
"""Called with the name of a table and one of its rows, by the names of its columns. The store may call it in another thread."""


def unseen(records: int) -> None:
    """Report no progress."""
