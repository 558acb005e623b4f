"""Begins an epoch: what a restore changes in the tables, on both databases."""

from __future__ import annotations

import asyncio
import secrets
import time

from onward.core import wire
from onward.core.epoch import Epoch, Lost
from onward.core.task import NEVER
from onward.errors import UsageError
from onward.store.port.backup import Progress, Snapshot, Tell
from onward.store.shared.database import Connection

TOKEN_JUMP = 1_000_000_000
"""By how much the tokens of locks grow with a restore, at least: more than were given between a backup and its restore."""

TOKENS_PER_S = 1_000_000
"""More than are given in a second. Tokens begin at the time of the restore, so they grow too when a backup is restored a second time."""


OWNED = ("onward_tasks", "onward_keys", "onward_schedules", "onward_subscriptions", "onward_audit", "onward_documents")
"""Tables of which one row makes a database worth keeping."""


def new_epoch(number: int, backup_at: float, restored_at: float, *, own_tables: bool) -> Epoch:
    """The epoch that a restore begins. Its id is random: two restores of the same backup are two epochs."""
    return Epoch(number, secrets.token_hex(16), backup_at, restored_at, own_tables)


async def begin(connection: Connection, epoch: Epoch) -> None:
    """Begin an epoch, in the transaction of this connection. Unfinished tasks are ready again, and their journals say that time was lost."""
    assert epoch.backup_at is not None
    lost = Lost(epoch.backup_at, epoch.own_tables)
    await connection.run("epoch_begin", **epoch._asdict())
    await connection.run("epoch_release", never=NEVER)
    data = wire.encode({**lost.to_json(), "epoch": epoch.number})
    await connection.run("epoch_records", data=data, restored_at=epoch.restored_at)
    await connection.run("epoch_verdicts")
    for name in ("epoch_workers", "epoch_intakes", "epoch_sessions"):
        await connection.run(name)
    assert epoch.restored_at is not None
    for name in ("epoch_tokens", "epoch_held_tokens"):
        await connection.run(name, jump=TOKEN_JUMP, least=int(epoch.restored_at * TOKENS_PER_S))


def check_migrations(snapshot: Snapshot, known: set[int]) -> None:
    """Raise UsageError for the tables of a newer program."""
    if newer := sorted(set(snapshot.migrations) - known):
        raise UsageError(
            f"the backup has table version {newer[-1]}, and this program knows {max(known)}; restore it with the version of Onward that "
            "made it, or a later one"
        )


async def wait(until: float, tell: Tell) -> None:
    """Wait until this time of the monotonic clock, at which the leases of earlier workers have ended: until then they may finish steps
    that they have begun."""
    if (left := until - time.monotonic()) > 0:
        tell(Progress(f"waiting {left:.0f} s until the leases of earlier workers have ended"))
        await asyncio.sleep(left)
