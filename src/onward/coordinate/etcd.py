"""etcd as a coordinator of locks, over its JSON gateway.

A lock is a key with a lease. A transaction writes it only when the key is as it was read, and the revision of that write is the token: the
revisions of a cluster only grow, over failovers too.
"""

from __future__ import annotations

import base64
import json
import math
import urllib.parse
from typing import Any, NamedTuple

from onward import certificates
from onward.coordinate.port import UNREACHABLE_AFTER_S, key_of
from onward.core.lock import Busy, LockRequest, Taken
from onward.errors import CoordinatorUnavailable, UsageError

PREFIX = "onward/locks/"
DEFAULT_PORT = 2379
MAX_ATTEMPTS = 5
"""Attempts to take a key that other writers change meanwhile."""


class _Key(NamedTuple):
    """A key as it was read."""

    owner: str
    label: str
    revision: int
    lease: str


class EtcdCoordinator:
    """See `port.Coordinator`. The URL is `etcd://HOST:PORT`, or `etcds://` with TLS; several hosts are separated by commas."""

    name = "etcd"

    def __init__(self, url: str) -> None:
        try:
            import httpx2  # noqa: PLC0415 -- an extra
        except ImportError:
            raise UsageError(
                "the coordinator is an etcd, and its client is not installed; pip install 'onward[client]'"
            ) from None
        self._http = httpx2
        scheme, _, rest = url.partition("://")
        account, _, hosts = rest.rstrip("/").rpartition("@")
        self._account = [urllib.parse.unquote(part) for part in account.split(":", 1)] if account else []
        web = "https" if scheme == "etcds" else "http"
        self._bases = [f"{web}://{host if ':' in host else f'{host}:{DEFAULT_PORT}'}" for host in hosts.split(",")]
        self.where = f"{scheme}://{hosts}"
        self._client: Any = None
        self._token = ""

    async def take(self, request: LockRequest, ttl_s: float) -> Taken | Busy:
        key = PREFIX + key_of(request)
        value = json.dumps([request.owner, request.label])
        for _ in range(MAX_ATTEMPTS):
            known = await self._read(key)
            if known is not None and known.owner != request.owner:
                return Busy(known.label)
            lease = (await self._post("lease/grant", {"TTL": max(1, math.ceil(ttl_s))}))["ID"]
            unchanged = {"key": _b64(key), "target": "MOD", "mod_revision": 0 if known is None else known.revision}
            put = {"request_put": {"key": _b64(key), "value": _b64(value), "lease": lease}}
            answer = await self._post("kv/txn", {"compare": [unchanged], "success": [put]})
            if answer.get("succeeded"):
                return Taken(int(answer["header"]["revision"]))
            await self._post("lease/revoke", {"ID": lease})
        return Busy("another program")

    async def renew(self, request: LockRequest, token: int, ttl_s: float) -> bool:  # noqa: ARG002 -- the lease knows its time
        known = await self._read(PREFIX + key_of(request))
        if known is None or known.owner != request.owner or token not in {0, known.revision}:
            return False
        answer = await self._post("lease/keepalive", {"ID": known.lease})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    async def free(self, request: LockRequest) -> None:
        known = await self._read(PREFIX + key_of(request))
        if known is not None and known.owner == request.owner:
            await self._post("lease/revoke", {"ID": known.lease})

    async def check(self) -> str:
        status = await self._post("maintenance/status", {})
        return f"{self.where}, etcd {status.get('version', '?')}"

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _read(self, key: str) -> _Key | None:
        answer = await self._post("kv/range", {"key": _b64(key)})
        for row in answer.get("kvs", ()):
            owner, label = json.loads(base64.b64decode(row["value"]))
            return _Key(owner, label, int(row["mod_revision"]), row.get("lease", "0"))
        return None

    async def _post(self, verb: str, body: dict[str, Any]) -> Any:
        """The answer of the first host that gives one."""
        error: Exception | None = None
        for number, base in enumerate(self._bases):
            try:
                return await self._post_to(base, verb, body)
            except (self._http.HTTPError, OSError, ValueError) as failed:
                error = failed
                if number == 0 and len(self._bases) > 1:
                    self._bases = [*self._bases[1:], base]  # the next call begins with another host
        raise CoordinatorUnavailable(
            f"the coordinator {self.where} does not answer: {type(error).__name__}: {error}"
        ) from None

    async def _post_to(self, base: str, verb: str, body: dict[str, Any]) -> Any:
        if self._client is None:
            trusted = await certificates.trusted() if base.startswith("https") else False
            self._client = self._http.AsyncClient(timeout=UNREACHABLE_AFTER_S, verify=trusted, trust_env=False)
        if self._account and not self._token and verb != "auth/authenticate":
            name, password = (*self._account, "")[:2]
            answer = await self._post_to(base, "auth/authenticate", {"name": name, "password": password})
            self._token = answer["token"]
        headers = {"Authorization": self._token} if self._token else {}
        response = await self._client.post(f"{base}/v3/{verb}", json=body, headers=headers)
        if response.status_code == 401:
            self._token = ""
        if verb == "lease/revoke" and response.status_code == 404:
            return {}
        response.raise_for_status()
        return json.loads(response.text.partition("\n")[0])


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
