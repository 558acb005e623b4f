"""The seam between the verbs of the store and the driver of a database.

Most verbs are the same few statements on SQLite and on PostgreSQL. They are written once, in the other modules of this package, over
a `Database` and the `Connection` that it hands to a job. `sqlite/database.py` and `postgres/database.py` implement both.

A statement is named by its section in `statements/`. A section that stands in both `sqlite.sql` and `postgres.sql` may take other
parameters in each: values without a parameter are ignored. Lists and dicts reach each database in the form that it takes. Rows are read
by position. PostgreSQL returns booleans, SQLite returns 0 and 1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from onward.core.limit import LimitRow
from onward.store.port.values import ChildEnd
from onward.store.shared.codec import Codec

T = TypeVar("T")

UNSTORABLE = "a name, an id or a filter has a character that the database cannot store (NUL, or half of a surrogate pair); leave it out"
"""The sentence for a string that a driver or a server refuses. Most callers check their strings before; this is for the rest."""


class Connection(Protocol):
    """A connection while one job uses it. A job on SQLite runs in the thread of the connection and must not wait for anything else."""

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        """All rows of a statement."""
        ...

    async def fetch_named(self, name: str, /, **values: Any) -> Sequence[Mapping[str, Any]]:
        """The same, each row by the names of its columns."""
        ...

    async def first(self, name: str, /, **values: Any) -> Any:
        """The first row of a statement, or None."""
        ...

    async def run(self, name: str, /, *, timeout_s: float | None = None, **values: Any) -> int:
        """Run a statement without rows; how many rows it changed. `timeout_s` replaces the usual time limit of a statement, where
        the database has one."""
        ...

    async def run_many(self, name: str, values: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement once for each of these values."""
        ...

    async def lock(self, name: str, /, **values: Any) -> None:
        """Run a statement of `postgres.sql` that takes locks. On SQLite it does nothing: there is one writer."""
        ...

    async def tell_parents(self, ends: Sequence[ChildEnd]) -> None:
        """Send the ends of children to their parents."""
        ...

    async def release_limits(self, gates: Iterable[str]) -> None:
        """Let others start, for each task that was held under one of these limits and is held no longer."""
        ...

    async def set_limits(self, limits: Sequence[LimitRow]) -> None:
        """See `Queues.set_limits`."""
        ...


Job = Callable[[Connection], Awaitable[T]]


class Database(Protocol):
    """A database that runs statements by their names."""

    where: str
    codec: Codec | None
    """Seals and opens payloads; None when payloads are stored as they are."""
    epoch: str | None
    """The epoch in which this process writes; None before it has opened the database."""

    async def enter(self, epoch: str) -> None:
        """Write in this epoch only: later ones are refused with EpochEnded."""
        ...

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        """The rows of one statement that only reads."""
        ...

    async def fetch_named(self, name: str, /, **values: Any) -> Sequence[Mapping[str, Any]]:
        """The same, each row by the names of its columns."""
        ...

    async def write(self, name: str, /, **values: Any) -> list[Any]:
        """Run one statement in a transaction of its own; the rows that it returns."""
        ...

    async def write_many(self, name: str, values: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement once for each of these values, in one transaction."""
        ...

    async def read(self, job: Job[T]) -> T:
        """Run a job that only reads, over one connection."""
        ...

    async def sequence(self, job: Job[T]) -> T:
        """Run the statements of a job one after the other. SQLite runs them in one transaction. PostgreSQL commits each of them, so
        that no lock is held for longer than a statement."""
        ...

    async def transact(self, job: Job[T]) -> T:
        """Run a job in one transaction. PostgreSQL runs it again when another writer took the number of a record that it inserts."""
        ...


class OverDatabase:
    """The base of a port that is written over a `Database`."""

    def __init__(self, database: Database) -> None:
        self._db = database


def seen_by(whose: str | None) -> dict[str, Any]:
    """The parameters of every statement that filters by tenant. `whose` means the same in every port: the name of a tenant; "" for rows
    without a tenant; None for all rows."""
    return {"tenant": whose, "of_all": whose is None}
