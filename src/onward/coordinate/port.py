"""The port of a coordinator: a system that gives locks, each with a token that only grows."""

from __future__ import annotations

import urllib.parse
from typing import Protocol

from onward.core.lock import Busy, LockRequest, Taken

UNREACHABLE_AFTER_S = 5.0
"""Seconds after which a coordinator that does not answer counts as unreachable."""


class Coordinator(Protocol):
    """Every verb raises CoordinatorUnavailable (the store: StoreUnavailable) when the coordinator does not answer. Each can be called
    again after an unknown outcome."""

    name: str
    """`store`, `redis` or `etcd`."""

    async def take(self, request: LockRequest, ttl_s: float) -> Taken | Busy:
        """Take a lock that is free, or that this owner has, for so many seconds. Each time the token is larger than all before it."""
        ...

    async def renew(self, request: LockRequest, token: int, ttl_s: float) -> bool:
        """Hold the lock for so many seconds from now; False when this owner does not hold it with that token (0: any) any more."""
        ...

    async def free(self, request: LockRequest) -> None:
        """Free the lock, or leave its line, unless another owner has it."""
        ...

    async def check(self) -> str:
        """Ask the coordinator for a sign of life; what it is, in words."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def key_of(request: LockRequest) -> str:
    """The key of a lock outside of the store. Two tenants, or two names, never share one."""
    return "/".join(urllib.parse.quote(part, safe=":@") for part in (request.tenant, request.name))
