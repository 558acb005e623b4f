"""Who asks: a key in the header `Authorization: Bearer onw_…`, or anybody, as long as there is no key at all.

What the store said of a key counts for `FRESH` seconds, so that a request costs no query of its own; then it is asked again.
So long, at most, a key that was revoked opens anything, in every process, and a door without keys stays open after the first key
was made; what stays open asks again every second, and ends within two. Once there is a key the door stays shut, also when all of them are revoked.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from onward.core import key as keys
from onward.core.caller import ANYBODY, Caller
from onward.core.clock import Clock
from onward.core.key import KeyRow, Token
from onward.engine.spawning import Spawn, spawn
from onward.errors import StoreUnavailable, Unauthorized, UsageError
from onward.keys import Keys, caller

FRESH = 1.0
"""Seconds for which what the store said of a key counts."""

MOST = 1000
"""How many keys are remembered at once."""

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

    async def caller(self, authorization: str | None) -> Caller:
        """Whoever shows this header. Without one: anybody, while there is no key. Raises Unauthorized, with one sentence for
        every reason."""
        if authorization is None:
            if await self.shut():
                raise Unauthorized
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


def check_bind(host: str, has_keys: bool) -> None:
    """Without keys only this machine may reach a server. Raises UsageError."""
    if has_keys or host == "localhost":
        return
    try:
        if ipaddress.ip_address(host.strip("[]")).is_loopback:
            return
    except ValueError:
        pass  # the name of a host, and who knows from where it can be reached
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
