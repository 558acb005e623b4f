"""SQL by name. `common.sql` is the same on both databases; `postgres.sql` and `sqlite.sql` hold what differs by necessity.

A section starts with `-- name: verb` and a sentence. `:word` is a parameter, `{word}` the text of another section, and `x AMONG (:word)` asks
whether x is one of several values, which PostgreSQL takes as an array and SQLite as a JSON list.
"""

from __future__ import annotations

import dataclasses
import re
from importlib.resources import files
from typing import Any

_SECTION = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_AMONG = re.compile(r"AMONG \(:([a-z_]+)\)")
_ONE_OF = {"postgres": r"= ANY(:\1)", "sqlite": r"IN (SELECT value FROM json_each(:\1))"}
_INSIDE = re.compile(r"\{(\w+)\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """One statement in a driver's own form; called with named values it gives them in the order the driver wants."""

    sql: str
    names: tuple[str, ...]

    def __call__(self, **values: Any) -> tuple[Any, ...]:
        return tuple([values[name] for name in self.names])


def _sections(text: str) -> dict[str, str]:
    parts = _SECTION.split(text)
    return {name: body.strip().rstrip(";") for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def load(dialect: str) -> dict[str, Statement]:
    """All statements for `postgres` ($1, $2 …) or `sqlite` (?1, ?2 …)."""
    folder = files(__package__)
    texts: dict[str, str] = {}
    for name in ("common", dialect):
        texts |= _sections((folder / f"{name}.sql").read_text(encoding="utf-8"))
    sign = "$" if dialect == "postgres" else "?"
    texts = {name: _AMONG.sub(_ONE_OF[dialect], text) for name, text in texts.items()}
    return {name: _compile(text, texts, sign) for name, text in texts.items()}


def text(name: str) -> str:
    """A section of `common.sql` as it is written there, for connections that are not ours."""
    return re.sub(r"^\s*--.*\n", "", _sections((files(__package__) / "common.sql").read_text(encoding="utf-8"))[name])


def _compile(text: str, texts: dict[str, str], sign: str) -> Statement:
    while _INSIDE.search(text):
        text = _INSIDE.sub(lambda match: texts[match[1]], text)
    text = re.sub(r"^\s*--.*\n", "", text, flags=re.MULTILINE)
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"{sign}{names.index(match[1]) + 1}"

    return Statement(_PARAMETER.sub(number, text), tuple(names))
