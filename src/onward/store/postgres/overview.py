"""Overviews on PostgreSQL."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, Unpack

from onward.core.record import Record
from onward.core.task import Tasks
from onward.store.port import overview
from onward.store.port.access import seen_by
from onward.store.port.overview import IDS, Child, Ended, Unfinished, Which, by_task, listings, newest, newest_ids
from onward.store.shared import rows


class PostgresOverview:
    """See `Overview` for what each verb promises."""

    _fetch: Any
    _execute: Any

    async def unfinished(self) -> list[Unfinished]:
        return [Unfinished(*row) for row in await self._fetch("unfinished")]

    async def held(self) -> tuple[float, dict[str, int]]:
        (now,) = await self._fetch("now")
        return float(now[0]), dict(await self._fetch("held_by"))

    async def queue_limits(self) -> dict[str, tuple[int | None, bool]]:
        return overview.queue_limits(await self._fetch("limits"))

    async def pause_queue(self, queue: str, *, paused: bool) -> None:
        await self._execute("pause_queue" if paused else "unpause_queue", name=queue)

    async def ended(self, most: int) -> Ended:
        (row,) = await self._fetch("ended", most=most)
        (estimate,) = await self._fetch("ended_estimate")
        return overview.ended(row, most, estimate[0])

    async def offspring(self, parents: Sequence[str], most: int) -> Sequence[Child]:
        found = await self._fetch("offspring", parents=list(parents), most=most, head=overview.HEAD)
        return [Child(id_, task, ended, head or b"") for id_, task, ended, head in found]

    async def floor(self, before: str | None, count: int, whose: str | None = None) -> str | None:
        found = await self._fetch("floor", before=before or "~", count=count, **seen_by(whose))
        return str(found[0][0]) if found else None

    async def list(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Tasks:
        parts = []
        for name, values in listings(limit, before, which):
            parts.append([rows.task(row) for row in await self._fetch(name, **escaped(values))])
        return newest(parts, limit)

    async def ids(self, *, limit: int, before: str | None, **which: Unpack[Which]) -> Sequence[tuple[str, bytes]]:
        asked = listings(limit, before, which)
        return newest_ids([await self._fetch(IDS[name], **escaped(values)) for name, values in asked], limit)

    async def model_calls(self, task_ids: Sequence[str]) -> Sequence[tuple[str, bytes]]:
        return [(row[0], row[1]) for row in await self._fetch("model_calls", ids=list(task_ids))]

    async def size(self) -> int:
        return int((await self._fetch("size"))[0][0])

    async def ahead(self, task_ids: Sequence[str], most: int) -> dict[str, int]:
        return dict(await self._fetch("ahead", ids=list(task_ids), most=most))

    async def lately(self, task_ids: Sequence[str], back: int, most: int) -> dict[str, Sequence[Record]]:
        return by_task(await self._fetch("lately", ids=list(task_ids), back=back, most=most))


def escaped(values: dict[str, Any]) -> dict[str, Any]:
    """Patterns for bytes, as `encode(…, 'escape')` writes those: what is not ASCII by its octal numbers."""
    told = {name: value for name, value in values.items() if name.startswith(("within", "labelled"))}
    return values | {name: _octal(value) for name, value in told.items()} | {"pairs": _pairs(*values["bare"])}


def _pairs(lower: str, upper: str) -> list[bytes]:
    """Patterns of which at least one fits wherever the text stands: a letter that is not ASCII, which is rare and has two cases at most;
    or two that follow each other, in all cases. Those with the fewest cases are taken; a colon stands otherwise in labels."""
    for small, large in zip(lower, upper, strict=True) if len(lower) == len(upper) else ():
        if not small.isascii() and not large.isascii():
            return [_like(case) for case in sorted({small, large})]
    found = [pair for pair in map("".join, itertools.pairwise(lower)) if pair.isascii() and ":" not in pair]
    found = found or [letter for letter in lower if letter.isascii() and letter != ":"]
    if not found:
        return [_like(part[:1]) for part in {lower, upper}]
    best = min(found, key=lambda pair: (_cases(pair), sum(letter in _OFTEN for letter in pair)))
    return [_like("".join(one)) for one in itertools.product(*({c.lower(), c.upper()} for c in best))]


_OFTEN = '"etaoinsr ,'
"""What stands in nearly every input."""


def _cases(pair: str) -> int:
    return sum(letter.isalpha() for letter in pair)


def _like(text: str) -> bytes:
    return b"%" + re.sub(rb"([\\\\%_])", rb"\\\1", text.encode()) + b"%"


def _octal(text: str) -> str:
    return "".join(
        "\\\\" if byte == 0x5C else chr(byte) if 0 < byte < 0x80 else f"\\{byte:03o}" for byte in text.encode()
    )
