"""Statements by name, on a PostgreSQL connection."""

from __future__ import annotations

from typing import Any

from onward.store import statements

S = statements.load("postgres")


async def run(connection: Any, name: str, /, **values: Any) -> None:
    """Run a statement."""
    await connection.execute(S[name].sql, *S[name](**values))


async def first(connection: Any, name: str, /, **values: Any) -> Any:
    """Its first row, or None."""
    return await connection.fetchrow(S[name].sql, *S[name](**values))
