"""Authentication by key: a key in the header `Authorization: Bearer onw_…`; or any program on this machine, as long as no key exists.
`session_auth.py` has the sessions of people, and `authenticator.py` joins the two.

Each request is checked by itself whether it comes from this machine (`outside_reason`): by the address of its peer, by its
`Host` header, and by the headers that proxies add. A server cannot know what it is mounted in, or which proxy is in front of it.

What the store says of a key is cached for `CACHE_TTL_S` seconds, so that most requests need no query. A revoked key is accepted
at most that long, in every process; and so long a server without keys stays open after the first key was created. Open streams
check their key every second, and end within two. Once a key was created the server needs one, even after all are revoked.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING, Any

from onward.core import key as keys
from onward.core.caller import ANYBODY, Caller
from onward.core.clock import Clock
from onward.core.key import KeyRow, Token
from onward.engine.background import Spawn, spawn
from onward.errors import KeylessOutside, StoreUnavailable, Unauthorized, UsageError
from onward.service.keys import Keys, caller

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

log = logging.getLogger("onward.http")

CACHE_TTL_S = 1.0
"""Seconds for which the store's answer about a key is cached."""

MAX_CACHED_KEYS = 1000
"""How many keys are cached at once."""

WARN_INTERVAL_S = 60.0
"""Seconds between two log lines about requests that were refused because no key exists."""

PROXY_HEADERS = frozenset(
    {"forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-original-host", "x-envoy-external-address",
     "true-client-ip", "cf-connecting-ip", "fastly-client-ip", "fly-client-ip", "cdn-loop", "x-proxyuser-ip"}
)  # fmt: skip
"""Headers that proxies add to requests, beside `X-Forwarded-…`. Programs on this machine send none of them."""

LAST_USED_INTERVAL_S = 60.0
"""Seconds between two writes of when a key was last used."""


class KeyAuthenticator:
    """Finds the caller of a request, by its key. One per process."""

    def __init__(self, keys: Keys, clock: Clock, spawn: Spawn = spawn, *, key_needed: bool = False) -> None:
        """`key_needed`: requests need a key also while none exists, because people sign in."""
        self._keys, self._clock, self._spawn = keys, clock, spawn
        # By the hash of the whole key: a wrong secret is never in here, so it takes as long as an unknown id.
        self._callers: dict[bytes, tuple[float, Caller]] = {}
        self._valid: dict[str, float] = {}
        self._used: dict[str, float] = {}
        self._needs_key, self._checked_at = key_needed, -CACHE_TTL_S
        self._next_warning = -WARN_INTERVAL_S

    async def caller(self, authorization: str | None, outside: str | None = None) -> Caller:
        """The caller of a request with this header. Without the header: any program on this machine, while no key exists;
        `outside` is the reason why the request does not come from one. Raises Unauthorized, with the same sentence for every
        reason except that no key exists."""
        if authorization is None:
            if await self.needs_key():
                raise Unauthorized
            if outside is not None:
                self._warn(outside)
                raise KeylessOutside(outside)
            return ANYBODY
        scheme, _, text = authorization.partition(" ")
        token = keys.parse(text.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise Unauthorized
        until, cached = self._callers.get(token.hash, (0.0, ANYBODY))
        return cached if self._clock.monotonic() < until else await self._look_up(token)

    async def still_valid(self, caller: Caller) -> bool:
        """Whether the caller is still allowed in, for open streams. Costs one query per key and second, however many streams
        ask."""
        if caller.key is None:
            return not await self.needs_key()
        now = self._clock.monotonic()
        if now < self._valid.get(caller.key, 0.0):
            return True
        if not await self._keys.valid(caller.key):
            return False
        remember(self._valid, caller.key, now + CACHE_TTL_S)
        return True

    async def needs_key(self) -> bool:
        """Whether requests need a key."""
        now = self._clock.monotonic()
        if not self._needs_key and now >= self._checked_at + CACHE_TTL_S:
            self._needs_key = await self._keys.any()
            self._checked_at = now  # when the query began: its answer is no newer
        return self._needs_key

    def _warn(self, outside: str) -> None:
        now = self._clock.monotonic()
        if now >= self._next_warning:
            self._next_warning = now + WARN_INTERVAL_S
            log.warning("a request without a key was refused: %s", KeylessOutside(outside))

    async def _look_up(self, token: Token) -> Caller:
        now = self._clock.monotonic()
        row = await self._keys.of(token)
        if row is None:
            self._callers.pop(token.hash, None)
            raise Unauthorized
        until = now + (CACHE_TTL_S if row.expires_at is None else min(CACHE_TTL_S, row.expires_at - row.now))
        known_caller = caller(row)
        remember(self._callers, token.hash, (until, known_caller))
        remember(self._valid, row.id, until)
        if now >= self._used.get(row.id, now) and (
            row.last_used_at is None or row.now - row.last_used_at >= LAST_USED_INTERVAL_S
        ):
            remember(self._used, row.id, now + LAST_USED_INTERVAL_S)
            self._spawn(self._note_use(row), "onward-key-used")
        return known_caller

    async def _note_use(self, row: KeyRow) -> None:
        try:
            await self._keys.used(row.id)
        except StoreUnavailable:  # the time of last use may be lost
            return


def outside_reason(connection: HTTPConnection) -> str | None:
    """The reason why a request may not come from a program on this machine; None if it does. A proxy on this machine forwards
    requests of others: it is recognised by the headers that it adds, or by the host name of the request. A request over a unix
    socket, or without a peer address, could come from a proxy."""
    peer = connection.client
    if peer is None:
        return "this request came without a peer address (over a unix socket, or through a server that gives none)"
    if not _loopback(peer.host):
        return f"this request came from {peer.host!r:.60}"
    for name in connection.headers:
        if name in PROXY_HEADERS or name.startswith("x-forwarded"):
            return f"this request was forwarded by a proxy (it has the header {name!r:.40})"
    host = connection.headers.get("host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if not (_loopback(name) or name.lower().rstrip(".").rpartition(".")[2] == "localhost"):
        return f"this request is for the host {name!r:.60}, which is not localhost"
    return None


def _loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def check_bind(host: str, has_keys: bool) -> None:
    """Refuse to listen on a public address while no key exists (`has_keys` is also true where people sign in). Raises UsageError."""
    if has_keys or host == "localhost" or _loopback(host):
        return  # any other host name may be reachable from elsewhere
    raise UsageError(
        f"no key exists yet, so every program that reaches {host} could do everything; create one first (`onward keys create --name ME "
        "--scope admin,read,submit,decide`), or listen on 127.0.0.1"
    )


def remember(cache: dict[Any, Any], key: object, value: object) -> None:
    """Put it into the cache, and drop the oldest entry if there are too many; a dropped key or session is looked up again."""
    cache.pop(key, None)
    cache[key] = value
    if len(cache) > MAX_CACHED_KEYS:
        del cache[next(iter(cache))]
