"""Old snapshots on PostgreSQL: a session, replication slot or prepared transaction that keeps the server from cleaning up.

While one is held, vacuum removes nothing that was deleted since, and every claim walks over the dead entries of the queue's indexes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_AGE_S = 60.0
"""Seconds for which a snapshot may be held."""

MAX_BEHIND = 100_000
"""Transactions by which a holder may be behind when its age in seconds is not known."""

CURES = {
    "session": "SELECT pg_terminate_backend({name})",
    "replication slot": "SELECT pg_drop_replication_slot('{name}'), when its reader is gone for good",
    "prepared transaction": "ROLLBACK PREPARED '{name}', or COMMIT PREPARED",
}


def check(holders: Sequence[Mapping[str, Any]]) -> tuple[str, bool, str]:
    """The check of `onward doctor` for the rows of the section `snapshots`, the oldest first."""
    old = [
        row
        for row in holders
        if (row["seconds"] or 0) >= MAX_AGE_S or (row["seconds"] is None and row["behind"] >= MAX_BEHIND)
    ]
    if not old:
        return "snapshots", True, "none is held for long"
    more = f"; {len(old) - 1} more" if len(old) > 1 else ""
    return "snapshots", False, f"{_describe(old[0])}{more}"


def _describe(row: Mapping[str, Any]) -> str:
    about = f" ({row['about']})" if row["about"] else ""
    held = f"for {row['seconds']:.0f} s, " if row["seconds"] is not None else ""
    cure = CURES[row["kind"]].format(name=row["name"])
    return (
        f"{row['kind']} {row['name']}{about} holds one {held}{row['behind']:,} transactions back: "
        f"the server cannot clean up behind it, and claims get slower; end it with {cure}"
    )
