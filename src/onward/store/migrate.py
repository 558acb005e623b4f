"""Migrations: numbered SQL files, each run once, in order, inside a transaction, and only ever additive.

Workers of the version before go on working while a migration runs, so a migration adds tables, columns and indexes and
leaves what is there. The table `onward_migrations` says which have run; a database that is ahead of the program is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
from importlib.resources import files

from onward.errors import SchemaMismatch

TABLE = "CREATE TABLE IF NOT EXISTS onward_migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL)"
READ = "SELECT number FROM onward_migrations ORDER BY number"


@dataclasses.dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]


def load(dialect: str) -> list[Migration]:
    """All migrations of a database, in order."""
    folder = files("onward.store") / "migrations" / dialect
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [Migration(int(f.name[:4]), f.name[:-4], f.read_text(encoding="utf-8")) for f in found]


def missing(migrations: list[Migration], done: set[int]) -> list[Migration]:
    """Those that have not run."""
    return [m for m in migrations if m.number not in done]


def check(where: str, migrations: list[Migration], done: set[int]) -> None:
    """Raise when the tables are of another version than the program."""
    newest, ours = max(done, default=0), migrations[-1].number
    if newest > ours:
        raise SchemaMismatch(
            f"{where} was migrated by a newer Onward (table version {newest}, this program knows {ours}); upgrade this program"
        )
    if missing(migrations, done):
        raise SchemaMismatch(
            f"{where} has table version {newest} and this program needs {ours}; run `onward migrate`, it is safe while workers run"
        )
