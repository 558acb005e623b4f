"""Who asks: a key in the header `Authorization: Bearer onw_…`, or a program on this machine, as long as there is no key at all.

Whether a request comes from this machine is judged for each request (`outside`), by the address of its peer, the host it asks for
and the headers that proxies leave: a server does not know in what it is mounted, nor who forwards to it.

What the store said of a key counts for `FRESH` seconds, so that a request costs no query of its own; then it is asked again.
So long, at most, a key that was revoked opens anything, in every process, and a door without keys stays open after the first key
was made; what stays open asks again every second, and ends within two. Once there is a key the door stays shut, also when all of them are revoked.
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

FRESH = 1.0
"""Seconds for which what the store said of a key counts."""

MOST = 1000
"""How many keys are remembered at once."""

AGAIN = 60.0
"""Seconds between two lines in the log about requests that were refused because there is no key."""

FORWARDED = frozenset(
    {"forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-original-host", "x-envoy-external-address",
     "true-client-ip", "cf-connecting-ip", "fastly-client-ip", "fly-client-ip", "cdn-loop", "x-proxyuser-ip"}
)  # fmt: skip
"""Headers that proxies add to what they forward, beside `X-Forwarded-…`. Programs that ask for themselves send none of them."""

USED = 60.0
"""Seconds between two notes of when a key was last used."""


class Gate:
    """Finds out who asks. One for a process."""

    def __init__(self, keys: Keys, clock: Clock, spawn: Spawn = spawn) -> None:
        self._keys, self._clock, self._spawn = keys, clock, spawn
        # By the hash of the whole key: a secret that is wrong is never found here, and so takes as long as an unknown id.
        self._callers: dict[bytes, tuple[float, Caller]] = {}
        self._valid: dict[str, float] = {}
        self._used: dict[str, float] = {}
        self._shut, self._looked = False, -FRESH
        self._warned = -AGAIN

    async def caller(self, authorization: str | None, outside: str | None = None) -> Caller:
        """The caller that shows this header. Without one: any program on this machine, while there is no key; `outside` says why the
        request does not come from one. Raises Unauthorized, with one sentence for every reason but that there is no key at all."""
        if authorization is None:
            if await self.shut():
                raise Unauthorized
            if outside is not None:
                self._warn(outside)
                raise KeylessOutside(outside)
            return ANYBODY
        scheme, _, text = authorization.partition(" ")
        token = keys.parse(text.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise Unauthorized
        until, known = self._callers.get(token.hash, (0.0, ANYBODY))
        return known if self._clock.monotonic() < until else await self._asked(token)

    async def still(self, caller: Caller) -> bool:
        """Whether somebody who was let in still would be: for what stays open. Costs a query every few seconds for a key,
        however many ask."""
        if caller.key is None:
            return not await self.shut()
        now = self._clock.monotonic()
        if now < self._valid.get(caller.key, 0.0):
            return True
        if not await self._keys.valid(caller.key):
            return False
        _remember(self._valid, caller.key, now + FRESH)
        return True

    async def shut(self) -> bool:
        """Whether a key is needed."""
        now = self._clock.monotonic()
        if not self._shut and now >= self._looked + FRESH:
            self._shut = await self._keys.any()
            self._looked = now  # when the question was asked: the answer is no newer
        return self._shut

    def _warn(self, outside: str) -> None:
        now = self._clock.monotonic()
        if now >= self._warned:
            self._warned = now + AGAIN
            log.warning("a request without a key was refused: %s", KeylessOutside(outside))

    async def _asked(self, token: Token) -> Caller:
        now = self._clock.monotonic()
        row = await self._keys.of(token)
        if row is None:
            self._callers.pop(token.hash, None)
            raise Unauthorized
        until = now + (FRESH if row.expires_at is None else min(FRESH, row.expires_at - row.now))
        found = caller(row)
        _remember(self._callers, token.hash, (until, found))
        _remember(self._valid, row.id, until)
        if now >= self._used.get(row.id, now) and (row.last_used_at is None or row.now - row.last_used_at >= USED):
            _remember(self._used, row.id, now + USED)
            self._spawn(self._note(row), "onward-key-used")
        return found

    async def _note(self, row: KeyRow) -> None:
        try:
            await self._keys.used(row.id)
        except StoreUnavailable:  # a note to the minute may be lost
            return


def outside(connection: HTTPConnection) -> str | None:
    """Why a request is not known to come from a program on this machine; None when it does. A proxy on this machine speaks for
    others: it is known by the headers that it adds, or by the name that it was asked for. Whoever connects through a unix socket, or
    without an address, cannot be told from a proxy."""
    peer = connection.client
    if peer is None:
        return "this request came without an address (through a unix socket, or a server that tells none)"
    if not _loopback(peer.host):
        return f"this request came from {peer.host!r:.60}"
    for name in connection.headers:
        if name in FORWARDED or name.startswith("x-forwarded"):
            return f"this request was forwarded by a proxy (it has the header {name!r:.40})"
    host = connection.headers.get("host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if not (_loopback(name) or name.lower().rstrip(".").rpartition(".")[2] == "localhost"):
        return f"this request is for the host {name!r:.60}, which is not this machine's own name for itself"
    return None


def _loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def check_bind(host: str, has_keys: bool) -> None:
    """Without keys only this machine may reach a server. Raises UsageError."""
    if has_keys or host == "localhost" or _loopback(host):
        return  # any other name of a host may be reached from who knows where
    raise UsageError(
        f"there is no key yet, so everybody who reaches {host} could do everything; make one first (`onward keys create --name ME "
        "--scope admin,read,submit,decide`), or listen at 127.0.0.1"
    )


def _remember(known: dict[Any, Any], name: object, value: object) -> None:
    """Keep it, and of too many the youngest: what is forgotten is asked again."""
    known.pop(name, None)
    known[name] = value
    if len(known) > MOST:
        del known[next(iter(known))]
