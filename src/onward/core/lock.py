"""Locks: the values that coordinators, the store and the engine share. Pure.

A lock has a name, and at most one holder. Each time a lock is taken it gives a *token*, a number that only grows. The holder sends the
token with each of its writes, and the protected resource refuses a write whose token is smaller than the largest one that it has seen.
So a holder that was frozen, and taken for dead, cannot write over the work of its successor.

A task that comes back into a block in a new shift takes a new token, although it is the same holder: the worker of the shift before may
still run a step, and only the tokens tell the two apart.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any, ClassVar, NamedTuple, Self

from onward.core import mask
from onward.core.durations import Time
from onward.errors import BadSetting, UsageError

MAX_NAME_CHARS = 512
"""Characters of the name of a lock, as of other names."""

MAX_WAITERS = 10_000
"""Tasks and programs that may wait for one lock at a time."""

MAX_LOCKS_OF_TASK = 64
"""Locks that one task may hold or wait for at a time."""

COUNTERS = 256
"""Counters of tokens in a store. All locks of a bucket share a counter."""

MIN_TTL_S, MAX_TTL_S = 1.0, 86_400.0
"""The shortest and the longest lease of `app.lock` and `app.leader`, in seconds."""

WAITER_TTL_S = 5.0
"""Seconds for which a program that waits for a lock keeps its place in the line after it last asked; fewer where the lease that it asks for
is shorter, so that a program that died in the line holds up the next no longer than a holder that died."""

MESSAGE = "lock"
"""The kind of the message that tells a waiting task that a lock may be free."""


class Fence(int):
    """A fencing token. It is an int, and JSON has it as one. A replay does not compare it: after a crash a block has a new token, and the
    recorded steps of the block were called with the one before."""

    __slots__ = ()

    seen: ClassVar[bool] = False
    """Whether this process has made a token: before that no argument of a step is searched for one."""

    def __new__(cls, token: int) -> Self:
        Fence.seen = True
        return super().__new__(cls, token)


class LockRequest(NamedTuple):
    """Who wants a lock."""

    tenant: str
    """The tenant whose lock it is; "" without one. Locks of the same name in two tenants are two locks."""
    name: str
    owner: str
    """Names the holder: a block of a task, or one `app.lock` of one process. The owner that holds a lock already takes it again, and gets a
    new token."""
    label: str
    """The holder for people: the id of the task, or host and process."""
    task_id: str | None = None
    key: str = ""
    """The key of the block in the journal of the task."""
    ttl_s: float | None = None
    """The lease of a program; None for a task, which holds a lock until it leaves the block or ends."""
    outside: str = ""
    """The coordinator that a task takes the lock from beside the store; "" for none."""


class Taken(NamedTuple):
    """The lock was taken, with this token."""

    token: int


class Busy(NamedTuple):
    """Another holder has the lock, or waits for it and comes first."""

    holder: str
    since: float | None = None
    """When the holder took the lock; None where the coordinator does not know."""
    holds: bool = True
    """Whether it holds the lock; else it comes first in the line."""
    outside: bool = False
    """Whether a coordinator outside of the store says so."""


@dataclasses.dataclass(frozen=True, slots=True)
class LockHolder:
    """A task or program that holds a lock or waits for it."""

    holder: str
    """The id of a task, or the name of a program."""
    task_id: str | None
    since: Time
    until: Time | None
    """The end of its lease; None for a task."""


@dataclasses.dataclass(frozen=True, slots=True)
class Lock:
    """A lock that is held, or that someone waits for."""

    name: str
    tenant: str | None
    token: int | None
    """The token of the holder; None while no one holds the lock, and where a coordinator outside of the store counts the tokens."""
    holder: LockHolder | None
    waiters: tuple[LockHolder, ...]
    """Those that wait, in their order; only the first of a long line."""
    waiting: int
    """How many wait in all."""
    coordinator: str = "store"


def check_lock_name(name: object) -> str:
    """The name, if a lock may have it. Raises UsageError."""
    if mask.on and isinstance(name, str) and mask.text(name) != name:
        raise UsageError(
            f"the name of a lock has the value of a secret in it: {mask.text(name)!r:.200}; names are for everybody to read"
        )
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise UsageError(
            f"the name of a lock must be a string of 1 to {MAX_NAME_CHARS} printable characters, not {name!r:.80}"
        )
    return name


def check_ttl(ttl_s: float) -> float:
    """The lease of a lock, if it is possible. Raises BadSetting."""
    if not MIN_TTL_S <= ttl_s <= MAX_TTL_S:
        raise BadSetting("ttl", ttl_s, f"between {MIN_TTL_S:g} s and {MAX_TTL_S:g} s")
    return ttl_s


def bucket_of(tenant: str, name: str) -> int:
    """The bucket of a lock: the same in every process and version."""
    return zlib.crc32(f"{tenant}\n{name}".encode("utf-8", "surrogatepass")) % COUNTERS


def without_fences(value: Any) -> Any:
    """A value for the fingerprint of a call: tokens in tuples, lists and dicts count as equal."""
    if isinstance(value, Fence):
        return "token"
    if isinstance(value, tuple | list):
        return [without_fences(item) for item in value]
    if isinstance(value, dict):
        return {key: without_fences(item) for key, item in value.items()}
    return value
