"""Webhooks: an event as a signed POST. What comes of an attempt is a value; whoever asked decides what comes next.

Each attempt looks the receiver up anew (`guard`), has a connection of its own, and is over after 15 seconds whatever the other side
does. Only an answer of 200 to 299 is a success; a redirect is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import email.utils
import ssl
import urllib.parse
from typing import TYPE_CHECKING, Any

from onward.core import mask
from onward.core.clock import Clock
from onward.engine.worker.relay import SendResult
from onward.errors import BadSetting
from onward.sinks import guard, signature
from onward.sinks.errors import BadWebhook
from onward.telemetry import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from httpcore2 import AsyncNetworkStream

TIMEOUT = 15.0
MOST = 64 * 1024
"""Bytes of an answer that are read: nothing in it matters but its status."""

LONGEST_REST = 86_400.0
THROTTLED = frozenset({429, 502, 503, 504})
OWN, HOOK, TENANT = "url:", "hook:", "tenant:"
"""Lanes of subscriptions, of webhooks that were given at submit, and of those that a tenant gave."""


class Webhooks:
    """The way out to URLs."""

    def __init__(
        self, secret: str, allow_private: str, clock: Clock, *, resolve: guard.Resolve = guard.look_up
    ) -> None:
        self._secrets, self._allowed = signature.parse(secret), guard.Allowed.parse(allow_private)
        self._clock, self._resolve = clock, resolve
        self._tls: ssl.SSLContext | None = None

    def check(self, url: str, *, own: bool, tenant: str | None = None) -> str:
        """The lane of a URL that may be told; `own` when it has a secret of its own. Raises BadWebhook and BadSetting."""
        if mask.on and mask.text(url) != url:
            raise BadWebhook(mask.text(url), "it holds the value of a secret, and a URL is written down")
        target = guard.check(url, self._allowed)
        if not self._secrets:
            raise BadSetting(
                "webhook_secret",
                "",
                f"set before webhooks are sent: they are signed. ONWARD_WEBHOOK_SECRET is {signature.PREFIX} and 24 to 64 bytes in "
                f"base 64 (`echo {signature.PREFIX}$(openssl rand -base64 32)`)",
            )
        if tenant is not None and not own:
            return f"{TENANT}{urllib.parse.quote(tenant, safe='')}:{target.origin}"
        return (OWN if own else HOOK) + target.origin

    def secret(self, subscription: str) -> str:
        """The secret of a subscription, for its receiver."""
        return signature.shown(signature.derived(self._secrets, subscription)[0])

    def secret_of(self, tenant: str) -> str | None:
        """What signs the webhooks that a tenant gives at submit: ours would let its receivers sign for all others. None where
        there are no webhooks."""
        return signature.shown(signature.derived(self._secrets, TENANT + tenant)[0]) if self._secrets else None

    def serves(self, lane: str) -> bool:
        """Whether this process can send to a lane: it needs a secret, and what speaks HTTP."""
        return lane.startswith((OWN, HOOK, TENANT)) and bool(self._secrets) and _installed()

    async def send(
        self, lane: str, subscription: str, message: str, url: str, body: bytes, trace: Trace | None = None
    ) -> SendResult:
        """One attempt."""
        secrets = (
            self._secrets if lane.startswith(HOOK) else signature.derived(self._secrets, _named(lane, subscription))
        )
        now = int(self._clock.now())
        headers = {
            "content-type": "application/cloudevents+json; charset=utf-8",
            "user-agent": "onward",
            "accept-encoding": "identity",
            "connection": "close",
            "webhook-id": message,
            "webhook-timestamp": str(now),
            "webhook-signature": signature.sign(secrets, message, now, body),
            **(trace or {}),
        }
        try:
            async with asyncio.timeout(TIMEOUT):
                return await self._post(url, headers, body)
        except TimeoutError:
            return SendResult(False, f"no answer within {TIMEOUT:g} s", down=True)
        except BadWebhook as error:
            return SendResult(False, error.why, down=True)
        except Exception as error:  # whatever the other side makes of HTTP, TLS and names
            return SendResult(False, mask.text(f"{type(error).__name__}: {error}")[:300], down=True)

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> SendResult:
        target = guard.check(url, self._allowed)
        addresses = await guard.resolved(url, target, self._allowed, self._resolve)
        # In a thread: what speaks HTTP takes a while to load, and a worker has other things to do meanwhile.
        await asyncio.to_thread(_load)
        if target.scheme == "https" and self._tls is None:
            self._tls = await asyncio.to_thread(_trusted)
        from httpcore2 import URL, AsyncConnectionPool  # noqa: PLC0415 -- an extra

        pool = AsyncConnectionPool(
            ssl_context=self._tls, network_backend=_pinned(addresses), max_keepalive_connections=0
        )
        where = URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        async with pool, pool.stream("POST", where, headers=list(headers.items()), content=body) as response:
            # The status is all we need. The rest, or some of it, is read for the other side's peace.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1.0):
                    await _drained(response)
            return self._said(response.status, dict(response.headers))

    def _said(self, status: int, headers: dict[bytes, bytes]) -> SendResult:
        if 200 <= status < 300:
            return SendResult(True, f"HTTP {status}")
        if status == 410:
            return SendResult(False, "HTTP 410: the receiver is gone for good", gone=True)
        if 300 <= status < 400:
            return SendResult(False, f"HTTP {status}: a redirect, which is not followed")
        asked = next((value for name, value in headers.items() if name.lower() == b"retry-after"), b"")
        rest = self._rest(asked[:64].decode("latin-1")) if status in THROTTLED else None
        return SendResult(False, f"HTTP {status}", down=status >= 500, rest=rest)

    def _rest(self, asked: str) -> float | None:
        """The seconds of a Retry-After: a number or a date."""
        if asked.strip().isdecimal():
            return min(float(asked[:12]), LONGEST_REST)
        with contextlib.suppress(ValueError, TypeError):
            then = email.utils.parsedate_to_datetime(asked)
            then = then if then.tzinfo else then.replace(tzinfo=datetime.UTC)
            return min(max(0.0, then.timestamp() - self._clock.now()), LONGEST_REST)
        return None


def _named(lane: str, subscription: str) -> str:
    """Whose secret signs: a tenant's, or a subscription's."""
    return TENANT + urllib.parse.unquote(lane.split(":")[1]) if lane.startswith(TENANT) else subscription


def _load() -> None:
    import httpcore2  # noqa: F401, PLC0415 -- an extra


def _trusted() -> ssl.SSLContext:
    context = ssl.create_default_context()
    with contextlib.suppress(ImportError):  # beside the system's certificates, of which there may be none
        import certifi  # noqa: PLC0415 -- comes with the extra

        context.load_verify_locations(certifi.where())
    return context


async def _drained(response: Any) -> None:
    read = 0
    async for piece in response.aiter_stream():
        read += len(piece)
        if read >= MOST:
            return


def _installed() -> bool:
    import importlib.util  # noqa: PLC0415 -- asked for once there is something to send

    return importlib.util.find_spec("httpcore2") is not None


def _pinned(addresses: list[str]) -> Any:
    """A network on which every name is these addresses."""
    from httpcore2 import AnyIOBackend, AsyncNetworkBackend, ConnectError  # noqa: PLC0415 -- an extra

    class Pinned(AsyncNetworkBackend):
        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: Iterable[Any] | None = None,
        ) -> AsyncNetworkStream:
            del host  # its addresses were looked up and judged; nobody looks again
            failed: Exception = ConnectError("there is no address")
            for address in addresses:
                try:
                    return await AnyIOBackend().connect_tcp(address, port, timeout, local_address, socket_options)
                except Exception as error:
                    failed = error
            raise failed

    return Pinned()
