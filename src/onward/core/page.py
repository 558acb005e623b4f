"""A page of a list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class Page(list[T]):
    """The items of a page. `next` is the cursor of the next page; None when there is none."""

    def __init__(self, items: Iterable[T] = (), next: str | None = None) -> None:  # noqa: A002 -- as in HTTP
        super().__init__(items)
        self.next = next
