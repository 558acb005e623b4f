"""The result of a prune (see `shared/pruning.py`)."""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN, CHILD, UNFINISHED, RECENT, UNTOLD = "unknown", "child", "unfinished", "recent", "untold"
"""Why a task stays: it does not exist; it goes with its root; a task of its tree has not ended, or ended only just; or an event of the
tree has still to be delivered."""


class Pruned(NamedTuple):
    """The ids of all tasks that are gone, and of the named ones that stay, each with the reason."""

    gone: list[str]
    kept: dict[str, str]
