"""Which statement lists tasks, and the parameters of a search for a text.

SQLite compares the text with bytes directly. PostgreSQL compares it with what `encode(…, 'escape')` makes of them, and looks for two
letters first (see the section `says` in each file of statements): so a text has two sets of patterns.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

from onward.core.task import State
from onward.store.port.listing import MAX_BYTES, Which
from onward.store.shared.database import seen_by

SEARCHED_BYTES = 200
"""Bytes of an input in which a text is looked for."""

IDS_STATEMENTS = {
    "list_all": "ids_all",
    "list_tenant": "ids_tenant",
    "list_of": "ids_of",
    "list_open": "ids_open",
    "list_ended": "ids_ended",
}
"""For each statement that lists tasks, the one that reads their ids and options alone."""

_FREQUENT = '"etaoinsr ,'
"""Characters of nearly every input."""


def listings(limit: int, before: str | None, which: Which) -> list[tuple[str, dict[str, Any]]]:
    """The statements that list these tasks, each through the index that reads the fewest other tasks. The newest rows of all of them
    together are the list."""
    states, reasons = _several(which.get("state")), _several(which.get("reason"))
    if states is None or which.get("parent") is not None or (reasons is None and State.COMPLETED in states):
        return [listing(limit, before, which)]
    ended = [] if reasons is not None else [State(state) for state in states if State(state).ended]
    unfinished = [State(state) for state in states if not State(state).ended]
    parts: list[Which] = [{**which, "state": state} for state in ended]
    parts += [{**which, "state": unfinished}] if unfinished else []
    return [listing(limit, before, part) for part in parts]


def listing(limit: int, before: str | None, which: Which) -> tuple[str, dict[str, Any]]:
    """The name and the values of the statement that lists tasks of one state, of several that have not ended, or of any states of
    which one is `completed`."""
    states, reason, parent = _several(which.get("state")), _several(which.get("reason")), which.get("parent")
    values: dict[str, Any] = {"limit": limit, "before": before or "~", "since": which.get("since") or ""}
    values["most"] = which.get("most") or MAX_BYTES
    values |= {"parent": parent, "label": which.get("label"), "any_label": which.get("label") is None}
    for name in ("task", "queue", "reason"):
        values |= {name: _several(which.get(name)) or [], f"any_{name}": which.get(name) is None}
    values |= {"states": states or [], "state": states and states[0], "any_state": states is None}
    values |= {**text_patterns(which.get("text")), **seen_by(whose := which.get("whose"))}
    if parent is not None:
        return "list_of", values
    if reason is not None or (states is not None and not any(State(state).ended for state in states)):
        return "list_open", values
    if whose and (states is None or State.COMPLETED in states):
        return "list_tenant", values
    alone = states is not None and len(states) == 1 and (states[0] != State.COMPLETED or not _is_selective(which))
    return "list_ended" if alone else "list_all", values


def _is_selective(which: Which) -> bool:
    return any(which.get(name) is not None for name in ("task", "queue", "label", "text"))


def _several(value: Any) -> list[Any] | None:
    if value is None:
        return None
    return [str(value)] if isinstance(value, str) else [str(item) for item in value]


def text_patterns(text: str | None) -> dict[str, Any]:
    """The parameters of the section `says` of both databases. In JSON a quote has a backslash before it."""
    lower, upper = (text or "").lower(), (text or "").upper()
    values: dict[str, Any] = {"any_text": text is None, "far": SEARCHED_BYTES, "two_cases": not lower.isascii()}
    values |= {"id_begins": _pattern(lower)[1:], "id_ends": _pattern(lower)[:-1]}
    in_json = [json.dumps(case, ensure_ascii=False)[1:-1] for case in (lower, upper)]
    for suffix, case, inside in zip(("", "_too"), (lower, upper), in_json, strict=True):
        within, labelled = _pattern(inside), _pattern(inside.replace(":", '":"', 1))
        values |= {f"text{suffix}": _pattern(case), f"within{suffix}": within, f"labelled{suffix}": labelled}
        values |= {f"octal_within{suffix}": _octal(within), f"octal_labelled{suffix}": _octal(labelled)}
    return values | {"pairs": _pairs(*in_json)}


def _pattern(text: str) -> str:
    return "%" + re.sub(r"([~%_])", r"~\1", text) + "%"


def _octal(text: str) -> str:
    """A pattern as `encode(…, 'escape')` writes bytes: a byte outside of ASCII by its octal number."""
    return "".join(
        "\\\\" if byte == 0x5C else chr(byte) if 0 < byte < 0x80 else f"\\{byte:03o}" for byte in text.encode()
    )


def _pairs(lower: str, upper: str) -> list[bytes]:
    """Patterns of which at least one matches all bytes that hold the text: a letter that is not ASCII, which is rare and has two cases
    at most; or two letters in a row, in all cases. The pair with the fewest cases is taken. A pair with a colon is not: labels write
    it otherwise."""
    for small, large in zip(lower, upper, strict=True) if len(lower) == len(upper) else ():
        if not small.isascii() and not large.isascii():
            return [_like(case) for case in sorted({small, large})]
    parts = [pair for pair in map("".join, itertools.pairwise(lower)) if pair.isascii() and ":" not in pair]
    parts = parts or [letter for letter in lower if letter.isascii() and letter != ":"]
    if not parts:
        return [_like(part[:1]) for part in {lower, upper}]
    best = min(parts, key=lambda part: (sum(map(str.isalpha, part)), sum(letter in _FREQUENT for letter in part)))
    return [_like("".join(cases)) for cases in itertools.product(*({c.lower(), c.upper()} for c in best))]


def _like(text: str) -> bytes:
    return b"%" + re.sub(rb"([\\\\%_])", rb"\\\1", text.encode()) + b"%"


def newest_ids(parts: Sequence[Sequence[Sequence[Any]]], limit: int) -> list[tuple[str, bytes]]:
    """The newest ids and options of several statements."""
    pairs = ((str(row[0]), bytes(row[1])) for row in itertools.chain.from_iterable(parts))
    return sorted(pairs, reverse=True)[:limit]
