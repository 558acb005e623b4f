"""Old snapshots on PostgreSQL: a session, replication slot or prepared transaction that keeps the server from cleaning up.

While one is held, vacuum removes nothing that was deleted since, and every claim walks over the dead entries of the queue's indexes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

OLD_S = 60.0
"""Seconds for which a snapshot may be held."""

FAR = 100_000
"""Transactions by which a holder may be behind whose age is not known in seconds."""

CURES = {
    "session": "SELECT pg_terminate_backend({name})",
    "replication slot": "SELECT pg_drop_replication_slot('{name}'), when its reader is gone for good",
    "prepared transaction": "ROLLBACK PREPARED '{name}', or COMMIT PREPARED",
}


def check(holders: Sequence[Mapping[str, Any]]) -> tuple[str, bool, str]:
    """What `onward doctor` says of the rows of the section `snapshots`, the oldest first."""
    old = [
        row for row in holders if (row["seconds"] or 0) >= OLD_S or (row["seconds"] is None and row["behind"] >= FAR)
    ]
    if not old:
        return "snapshots", True, "none is held for long"
    more = f"; {len(old) - 1} more" if len(old) > 1 else ""
    return "snapshots", False, f"{_told(old[0])}{more}"


def _told(row: Mapping[str, Any]) -> str:
    about = f" ({row['about']})" if row["about"] else ""
    held = f"for {row['seconds']:.0f} s, " if row["seconds"] is not None else ""
    cure = CURES[row["kind"]].format(name=row["name"])
    return (
        f"{row['kind']} {row['name']}{about} holds one {held}{row['behind']:,} transactions back: "
        f"the server cannot clean up behind it, and claims get slower; end it with {cure}"
    )
