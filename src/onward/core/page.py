"""A page of a list, and the cursor of a list in the order of its times."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from onward.core.text import safe
from onward.errors import BadSetting

T = TypeVar("T")

MAX_CURSOR_CHARS: Final = 200
MAX_SHOWN_CHARS: Final = 80
"""Characters of a wrong cursor in an error."""


class Page(list[T]):
    """The items of a page. `next` is the cursor of the next page; None when there is none."""

    def __init__(self, items: Iterable[T] = (), next: str | None = None) -> None:  # noqa: A002 -- as in HTTP
        super().__init__(items)
        self.next = next


async def every_item(page: Callable[[str | None], Awaitable[Page[T]]]) -> list[T]:
    """The items of all pages. `page` reads the one at a cursor; None is for the first."""
    items: list[T] = []
    cursor: str | None = None
    while True:
        read = await page(cursor)
        items += read
        if (cursor := read.next) is None:
            return items


def check_limit(limit: int, most: int) -> None:
    """Raises BadSetting for a page of another number of items than 1 to `most`."""
    if not 1 <= limit <= most:
        raise BadSetting("limit", limit, f"between 1 and {most}")


def fitting(items: Sequence[T], most: int, size: Callable[[T], int]) -> Sequence[T]:
    """The first of these items, up to the one with which they have `most` bytes together."""
    total = 0
    for number, item in enumerate(items, 1):
        total += size(item)
        if total >= most:
            return items[:number]
    return items


class TimeCursor(NamedTuple):
    """A place in a list in the order of times: that of an item, and its id."""

    at: float
    id: str

    def __str__(self) -> str:
        return json.dumps([self.at, self.id])


FIRST: Final = TimeCursor(-1.0, "")
"""The place before all items."""


def parse_time_cursor(cursor: str | None) -> TimeCursor:
    """The place that a cursor stands for; None is for the first page. Raises BadSetting."""
    if cursor is None:
        return FIRST
    with contextlib.suppress(ValueError, TypeError):
        at, item_id = json.loads(cursor[:MAX_CURSOR_CHARS])
        if isinstance(at, float) and math.isfinite(at) and isinstance(item_id, str) and item_id.isalnum():
            return TimeCursor(at, item_id)
    raise BadSetting("cursor", safe(cursor)[:MAX_SHOWN_CHARS], "`next` of the page before")
