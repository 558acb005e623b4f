"""Migrations: numbered SQL files, each run once, in order.

Workers of the version before go on working while a migration runs, and a program of the version before may be started again after it.
So a migration expands: it adds tables, columns and indexes, and leaves the others. A file has two parts:

- its script, which runs in one transaction;
- its indexes on tables that were there before the file. PostgreSQL makes each of them CONCURRENTLY, after the script and outside a
  transaction, whether the file says CONCURRENTLY or not. Such a statement begins at the start of a line and ends with a semicolon.
  An index that replaces another one has a new name: the old one serves until the new one is there.

A migration that takes away what older programs use (contract) has a line `-- oldest: 0015`: the newest migration that a program
has to know to work on these tables. Only a new major version has such a migration. The table `onward_migrations` says which migrations
have run, and `onward_schema` which programs are too old, how far an interrupted migration came, and whether the database is a mirror.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import NamedTuple

from onward.errors import SchemaMismatch

TABLES = """
CREATE TABLE IF NOT EXISTS onward_migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS onward_schema (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""
READ = "SELECT number FROM onward_migrations ORDER BY number"
MARKS = "SELECT name, value FROM onward_schema"

OLDEST = "oldest"
"""The mark for the newest migration that a program has to know to work on these tables."""

SCRIPTED = "scripted"
"""The mark for the last migration whose script has run, while its indexes are being made."""

MIRROR = "mirror"
"""The mark of a database that is the mirror of the tasks of another engine (`engines/mirror.py`)."""

EPOCHS = 20
"""The migration that made the table of epochs."""

_MADE = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?(\w+)", re.MULTILINE)
_INDEX = re.compile(
    r"^CREATE (?P<unique>UNIQUE )?INDEX (?:CONCURRENTLY )?(?P<name>\w+)(?P<rest> ON (?P<table>\w+)[^;]*);", re.MULTILINE
)
_OLDEST = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)


class Progress(NamedTuple):
    """What a migration does at this moment."""

    migration: str
    said: str


Tell = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Report no progress."""


class Index(NamedTuple):
    """An index that is made while other programs work."""

    name: str
    sql: str


class State(NamedTuple):
    """The state of the tables: the migrations that have run, and the marks."""

    done: frozenset[int] = frozenset()
    oldest: int = 0
    scripted: int = 0
    mirror: bool = False

    @property
    def newest(self) -> int:
        """The last migration that has run; 0 for none."""
        return max(self.done, default=0)


@dataclasses.dataclass(frozen=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]

    @property
    def oldest(self) -> int:
        """The newest migration that a program has to know to work after this one; 0 where every program can."""
        match = _OLDEST.search(self.sql)
        return int(match[1]) if match else 0

    @functools.cached_property
    def _concurrent(self) -> list[re.Match[str]]:
        new_tables = set(_MADE.findall(self.sql))
        return [match for match in _INDEX.finditer(self.sql) if match["table"] not in new_tables]

    @property
    def indexes(self) -> list[Index]:
        """The indexes that are made while other programs work, in their order."""
        return [
            Index(match["name"], f"CREATE {match['unique'] or ''}INDEX CONCURRENTLY {match['name']}{match['rest']}")
            for match in self._concurrent
        ]

    @property
    def script(self) -> str:
        """All other statements of the file."""
        text = self.sql
        for match in self._concurrent:
            text = text.replace(match[0], "")
        return text

    @property
    def whole(self) -> str:
        """Script and indexes together, for a database that no other program uses meanwhile."""
        return re.sub(r"^(CREATE (?:UNIQUE )?INDEX) CONCURRENTLY ", r"\1 ", self.sql, flags=re.MULTILINE)


@functools.cache
def load(dialect: str) -> Sequence[Migration]:
    """All migrations of a database, in order. This process reads the files once."""
    folder = files("onward.store") / "migrations" / dialect
    scripts = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return tuple(Migration(int(f.name[:4]), f.name[:-4], f.read_text(encoding="utf-8")) for f in scripts)


def missing(migrations: Sequence[Migration], state: State) -> list[Migration]:
    """The migrations that have not run."""
    return [m for m in migrations if m.number not in state.done]


def check_age(where: str, migrations: Sequence[Migration], state: State) -> None:
    """Raise SchemaMismatch when only newer programs can work on the tables."""
    ours = migrations[-1].number
    if state.oldest > ours:
        raise SchemaMismatch(
            f"{where} was migrated by a newer Onward of another major version (table version {state.newest}, for programs that know "
            f"version {state.oldest}; this program knows {ours}); upgrade this program"
        )


def check(where: str, migrations: Sequence[Migration], state: State) -> None:
    """Raise SchemaMismatch when this program cannot work on the tables. It can work on newer ones of the same major version."""
    check_age(where, migrations, state)
    if missing(migrations, state):
        raise SchemaMismatch(
            f"{where} has table version {state.newest} and this program needs {migrations[-1].number}; run `onward migrate`, it is "
            "safe while workers run"
        )
