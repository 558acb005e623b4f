"""The places that the settings `db` and `artifacts` name."""

from __future__ import annotations

import importlib.util
import urllib.parse
from pathlib import Path

from onward.artifacts.keeper import Shelf
from onward.config import DEFAULT_CONNECTIONS, RESERVED_CONNECTIONS
from onward.core.clock import Clock
from onward.errors import BadSetting
from onward.store.port.core import Store
from onward.store.sqlite.file import MEMORY
from onward.store.sqlite.store import SqliteStore


def open_store(url: str, clock: Clock | None = None, connections: int = DEFAULT_CONNECTIONS) -> Store:
    """The store that a URL names, not opened yet. This process opens at most `connections` connections to a PostgreSQL server."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        if rest in {"", ":memory:", "/:memory:"}:
            return SqliteStore(MEMORY, clock=clock)
        return SqliteStore(rest.removeprefix("/"), clock=clock)
    if scheme in {"postgres", "postgresql"}:
        try:
            from onward.store.postgres.store import PostgresStore  # noqa: PLC0415 -- an extra
        except ImportError:
            raise BadSetting(
                "db", url.rpartition("@")[2], "reached with asyncpg: pip install 'onward[postgres]'"
            ) from None
        return PostgresStore(url, connections=connections - RESERVED_CONNECTIONS)
    raise BadSetting(
        "db",
        f"{scheme}://…" if rest else url,
        "sqlite:///FILE, sqlite://:memory: or postgresql://USER:PASSWORD@HOST/DATABASE",
    )


def open_shelf(place: str) -> Shelf | None:
    """The place for artifacts outside the database; None when the database keeps them."""
    scheme, mark, rest = place.partition("://")
    if place == "database":
        return None
    if scheme == "s3" and rest.partition("/")[0]:
        if importlib.util.find_spec("obstore") is None:
            raise BadSetting("artifacts", place, "reached with obstore: pip install 'onward[s3]'")
        from onward.artifacts.s3 import Bucket  # noqa: PLC0415 -- an extra

        bucket, _, prefix = rest.partition("/")
        return Bucket(bucket, prefix)
    if (scheme == "file" and rest.startswith("/")) or (not mark and "/" in place):
        from onward.artifacts.directory import SUPPORTED, Directory  # noqa: PLC0415 -- few apps have one

        if not SUPPORTED:
            raise BadSetting(
                "artifacts", place, "'database' or s3://BUCKET/PREFIX: Windows has no safe way to a folder"
            )
        return Directory(Path(urllib.parse.unquote(rest) if mark else place).expanduser())
    raise BadSetting("artifacts", place, "'database', a folder (/PATH, ./PATH or file:///PATH) or s3://BUCKET/PREFIX")
