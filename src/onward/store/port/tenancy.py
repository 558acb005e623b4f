"""The tenant for which this process reads right now.

`AuthorizedService` sets it for the time of a call, when its caller has a tenant. A store whose database has row-level security then reads
with rights that show rows of this tenant only (`store/postgres/tenancy.py`); other stores ignore it. It is a second lock: every statement
also filters by itself.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import TypeVar

T = TypeVar("T")

_tenant: contextvars.ContextVar[str | None] = contextvars.ContextVar("onward_tenant", default=None)


def reading_tenant() -> str | None:
    """The tenant for which this task of the event loop reads; None when it reads for all."""
    return _tenant.get()


@contextlib.contextmanager
def reads_for(tenant: str | None) -> Iterator[None]:
    """Read for this tenant while the block lasts; None: for all."""
    token = _tenant.set(tenant)
    try:
        yield
    finally:
        _tenant.reset(token)


async def each_for(tenant: str | None, items: AsyncIterator[T]) -> AsyncIterator[T]:
    """The items of an iterator, each read for this tenant. (A block around the loop would also hold for the code between two items.)"""
    try:
        while True:
            with reads_for(tenant):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()
