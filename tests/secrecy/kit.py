"""Helpers of the secrecy tests: all bytes of a database, and all forms of a value."""

from __future__ import annotations

import base64
import json
import urllib.parse
from pathlib import Path

import psycopg

from onward import Onward

VALUE = 'sk_live_"Zx9/q+7\\é=& 55'
"""A value that nearly every encoding changes."""


def database_bytes(app: Onward) -> bytes:
    """All bytes of the database as a thief would find them: the raw file, or every row of every table."""
    url = app.settings.db
    if url.startswith("postgres"):
        return _rows(url)
    path = Path(getattr(app.store, "path", ""))
    if path.exists():
        return b"".join(part.read_bytes() for part in path.parent.glob(f"{path.name}*"))
    raise AssertionError(f"{url} has no bytes to look at")


def _rows(url: str) -> bytes:
    with psycopg.connect(url) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
        tables = [connection.execute(f'SELECT * FROM "{name}"').fetchall() for (name,) in names]  # type: ignore[call-overload]
    return b"\n".join(
        value if isinstance(value, bytes) else str(value).encode() for table in tables for row in table for value in row
    )


def forms(value: str) -> dict[str, bytes]:
    """The forms that are searched for, computed without the code that masks."""
    raw = value.encode()
    return {
        "as it is": raw,
        "json": json.dumps(value, ensure_ascii=False)[1:-1].encode(),
        "ascii json": json.dumps(value)[1:-1].encode(),
        "json twice": json.dumps(json.dumps(value))[3:-3].encode(),
        "repr": repr(value)[1:-1].encode(),
        "url": urllib.parse.quote(value, safe="").encode(),
        "form": urllib.parse.quote_plus(value).encode(),
        "hex": raw.hex().encode(),
        "half": raw[:12],
        "the other half": raw[-12:],
        "half in json": json.dumps(value[:12])[1:-1].encode(),
        "the other half in json": json.dumps(value[-12:], ensure_ascii=False)[1:-1].encode(),
        **{f"base64 at {n}": base64.b64encode(b"\0" * n + raw)[4:-4] for n in range(3)},
        **{f"base64url at {n}": base64.urlsafe_b64encode(b"\0" * n + raw)[4:-4] for n in range(3)},
    }


def hits(data: bytes | str, value: str = VALUE) -> list[str]:
    """The forms of a value that are in it."""
    data = data.encode("utf-8", "replace") if isinstance(data, str) else data
    return [how for how, form in forms(value).items() if form in data]
