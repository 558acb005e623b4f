"""Webhooks: an event as a signed POST. The result of an attempt is a value; the relay decides what happens next.

Each attempt resolves the receiver again (`guard`), opens its own connection, and ends after 15 seconds whatever the receiver does.
Only a status of 200 to 299 is a success; a redirect is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import email.utils
import urllib.parse
from typing import TYPE_CHECKING, Any

from onward import certificates
from onward.core import mask
from onward.core.clock import Clock
from onward.engine.worker.sinks import SendResult
from onward.errors import BadSetting, BadWebhook
from onward.sinks import guard, signature
from onward.store.port.outbox import NO_CLIENT, UNSIGNED
from onward.telemetry import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from httpcore2 import AsyncNetworkStream

ATTEMPT_TIMEOUT_S = 15.0
MAX_RESPONSE_BYTES = 64 * 1024
"""Bytes of a response that are read: only its status matters."""

MAX_RETRY_AFTER_S = 86_400.0
THROTTLED = frozenset({429, 502, 503, 504})
SUBSCRIPTION, HOOK, TENANT = "url:", "hook:", "tenant:"
"""Lanes of subscriptions, of webhooks given at submit, and of webhooks that a tenant gave at submit."""


class Webhooks:
    """The sink that sends events to URLs."""

    def __init__(
        self, secret: str, allow_private: str, clock: Clock, *, resolve: guard.Resolve = guard.look_up
    ) -> None:
        self._secrets, self._allowed = signature.parse(secret), guard.Allowed.parse(allow_private)
        self._clock, self._resolve = clock, resolve

    def check(self, url: str, *, own: bool, tenant: str | None = None) -> str:
        """The lane of a URL, if webhooks may be sent to it; `own` if it has its own secret. Raises BadWebhook and BadSetting."""
        if mask.on and mask.text(url) != url:
            raise BadWebhook(mask.text(url), "it contains the value of a secret, and URLs are stored")
        target = guard.check(url, self._allowed)
        if not self._secrets:
            raise BadSetting(
                "webhook_secret",
                "",
                f"set, because webhooks are signed. ONWARD_WEBHOOK_SECRET is {signature.PREFIX} and 24 to 64 bytes in "
                f"base 64 (`echo {signature.PREFIX}$(openssl rand -base64 32)`)",
            )
        if tenant is not None and not own:
            return f"{TENANT}{urllib.parse.quote(tenant, safe='')}:{target.origin}"
        return (SUBSCRIPTION if own else HOOK) + target.origin

    def secret(self, subscription: str) -> str:
        """The secret of a subscription, for its receiver."""
        return signature.encode(signature.derive(self._secrets, subscription)[0])

    def secret_of(self, tenant: str) -> str | None:
        """The secret that signs the webhooks which a tenant gives at submit; with ours, its receivers could sign for all
        others. None if no webhook secret is set."""
        return signature.encode(signature.derive(self._secrets, TENANT + tenant)[0]) if self._secrets else None

    def serves(self, lane: str) -> bool:
        """Whether this process can send to a lane: it needs a secret and an HTTP client."""
        return lane.startswith((SUBSCRIPTION, HOOK, TENANT)) and self.lacks(lane) is None

    def lacks(self, lane: str) -> str | None:
        """Why this process cannot send to a lane of webhooks; None when it can, and for other lanes."""
        if not lane.startswith((SUBSCRIPTION, HOOK, TENANT)):
            return None
        return UNSIGNED if not self._secrets else None if _httpcore_installed() else NO_CLIENT

    async def send(
        self, lane: str, subscription: str, message: str, url: str, body: bytes, trace: Trace | None = None
    ) -> SendResult:
        """Make one attempt."""
        secrets = (
            self._secrets
            if lane.startswith(HOOK)
            else signature.derive(self._secrets, _secret_name(lane, subscription))
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
            async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                return await self._post(url, headers, body)
        except TimeoutError:
            return SendResult(False, f"no answer within {ATTEMPT_TIMEOUT_S:g} s", down=True)
        except BadWebhook as error:
            return SendResult(False, error.why, down=True)
        except Exception as error:  # any error of HTTP, TLS or name lookup
            return SendResult(False, mask.text(f"{type(error).__name__}: {error}")[:300], down=True)

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> SendResult:
        target = guard.check(url, self._allowed)
        addresses = await guard.resolve_target(url, target, self._allowed, self._resolve)
        # In a thread: the HTTP client takes a while to import, and the worker's event loop must not wait.
        await asyncio.to_thread(_import_httpcore)
        tls = await certificates.trusted() if target.scheme == "https" else None
        from httpcore2 import URL, AsyncConnectionPool  # noqa: PLC0415 -- an extra

        pool = AsyncConnectionPool(
            ssl_context=tls, network_backend=_pinned_backend(addresses), max_keepalive_connections=0
        )
        where = URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        async with pool, pool.stream("POST", where, headers=list(headers.items()), content=body) as response:
            # Only the status matters. Some of the body is read, so that the receiver sees no reset connection.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1.0):
                    await _drain(response)
            return self._result(response.status, dict(response.headers))

    def _result(self, status: int, headers: dict[bytes, bytes]) -> SendResult:
        if 200 <= status < 300:
            return SendResult(True, f"HTTP {status}")
        if status == 410:
            return SendResult(False, "HTTP 410: the receiver is gone for good", gone=True)
        if 300 <= status < 400:
            return SendResult(False, f"HTTP {status}: a redirect, which is not followed")
        retry_after = next((value for name, value in headers.items() if name.lower() == b"retry-after"), b"")
        rest = self._retry_after_s(retry_after[:64].decode("latin-1")) if status in THROTTLED else None
        return SendResult(False, f"HTTP {status}", down=status >= 500, rest=rest)

    def _retry_after_s(self, header: str) -> float | None:
        """The seconds of a Retry-After header: a number or a date."""
        if header.strip().isdecimal():
            return min(float(header[:12]), MAX_RETRY_AFTER_S)
        with contextlib.suppress(ValueError, TypeError):
            then = email.utils.parsedate_to_datetime(header)
            then = then if then.tzinfo else then.replace(tzinfo=datetime.UTC)
            return min(max(0.0, then.timestamp() - self._clock.now()), MAX_RETRY_AFTER_S)
        return None


def _secret_name(lane: str, subscription: str) -> str:
    """The name whose secret signs: a tenant's, or a subscription's."""
    return TENANT + urllib.parse.unquote(lane.split(":")[1]) if lane.startswith(TENANT) else subscription


def _import_httpcore() -> None:
    import httpcore2  # noqa: F401, PLC0415 -- an extra


async def _drain(response: Any) -> None:
    read = 0
    async for piece in response.aiter_stream():
        read += len(piece)
        if read >= MAX_RESPONSE_BYTES:
            return


def _httpcore_installed() -> bool:
    import importlib.util  # noqa: PLC0415 -- needed only when there is something to send

    return importlib.util.find_spec("httpcore2") is not None


def _pinned_backend(addresses: list[str]) -> Any:
    """A network backend that connects to these addresses, whatever the host name."""
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
            del host  # its addresses were resolved and checked; it is not resolved again
            last_error: Exception = ConnectError("there is no address")
            for address in addresses:
                try:
                    return await AnyIOBackend().connect_tcp(address, port, timeout, local_address, socket_options)
                except Exception as error:
                    last_error = error
            raise last_error

    return Pinned()
