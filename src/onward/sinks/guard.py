"""The guard: webhooks go only to addresses of the public internet, never inside your network (SSRF), unless the settings name it.

Each attempt resolves the host name once. If any of its addresses is not public, nothing is sent; otherwise the sender connects to
exactly these addresses, with the TLS certificate and the Host header of the name. So a name that changes between the check and the
connection has no effect. Redirects are never followed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import urllib.parse
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from onward.errors import BadSetting, BadWebhook

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

MAX_URL_LENGTH = 2048
HTTPS_PORTS = frozenset({443, 8443})
"""Ports that https uses. All other ports above 1023 are allowed too."""

# Networks that IANA's registries call "not globally reachable", and those that embed an address of another kind.
_PRIVATE_NETWORKS = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
        "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24",
        "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23",
        "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
    )
)  # fmt: skip
_IPV6_UNICAST = ipaddress.ip_network("2000::/3")
"""All IPv6 addresses that were ever assigned are in this network."""

_NUMERIC_HOST = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}\.?", re.IGNORECASE)
_PRIVATE_SUFFIXES = ("localhost", ".localhost", ".local", ".internal", ".localdomain", ".home.arpa")


class Allowed(NamedTuple):
    """The private receivers that the settings allow: all, networks, and host names."""

    all: bool = False
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    names: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return self.all or bool(self.networks or self.names)

    @classmethod
    def parse(cls, setting: str) -> Allowed:
        """`true`, or addresses, networks and host names, separated by commas. Raises BadSetting."""
        words = setting.replace(",", " ").lower().split()
        if words in ([], ["false"], ["0"], ["no"]):
            return cls()
        if words in (["true"], ["1"], ["yes"]):
            return cls(all=True)
        networks, names = [], set()
        for word in words:
            try:
                networks.append(ipaddress.ip_network(word.strip("[]"), strict=False))
            except ValueError:
                if not re.fullmatch(r"[a-z0-9_.-]+", word) or _NUMERIC_HOST.fullmatch(word) or "/" in word:
                    wanted = "true, or addresses, networks (10.0.0.0/8) and host names"
                    raise BadSetting("webhook_allow_private", word, wanted) from None
                names.add(word)
        return cls(False, tuple(networks), frozenset(names))

    def covers(self, host: str, address: Address) -> bool:
        """Whether this private address is allowed."""
        return self.all or host in self.names or any(address in network for network in self.networks)


class Target(NamedTuple):
    """The parts of a URL that passed the checks which need no name lookup."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> str:
        """The receiver: all deliveries to one origin share one rate."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def check(url: str, allowed: Allowed) -> Target:
    """The target of a URL, checked without a name lookup. Raises BadWebhook."""
    if not isinstance(url, str) or not 0 < len(url) <= MAX_URL_LENGTH:
        raise BadWebhook(url, f"it must be a string of at most {MAX_URL_LENGTH} characters")
    if not url.isascii() or re.search(r"[\x00-\x20\x7f\\]", url):
        raise BadWebhook(
            url, "it has spaces, backslashes or characters that are not ASCII; write them as %XX, and a host as xn--…"
        )
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise BadWebhook(url, str(error)) from None
    if parts.scheme not in {"https", "http"} or not host:
        raise BadWebhook(url, "it must be https://HOST/…")
    if parts.username is not None or parts.password is not None:
        raise BadWebhook(url, "it holds a user or a password; the signature says who sends it")
    if parts.fragment:
        raise BadWebhook(url, "it has a #fragment, which is never sent")
    if parts.scheme == "http" and not allowed:
        raise BadWebhook(url, "it must be https; ONWARD_WEBHOOK_ALLOW_PRIVATE allows http to receivers of your own")
    port = (443 if parts.scheme == "https" else 80) if port is None else port
    address = _literal(host, url)
    if address is None and not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", host):
        raise BadWebhook(url, "its host is not a name that can be looked up")
    if address is not None:
        check_addresses(url, host, [address], allowed, parts.scheme)
    elif (
        f".{host}".endswith(_PRIVATE_SUFFIXES)
        and not allowed.all
        and host not in allowed.names
        and not allowed.networks
    ):
        raise BadWebhook(url, "its host is private; allow it with ONWARD_WEBHOOK_ALLOW_PRIVATE")
    if not allowed and port < 1024 and port not in HTTPS_PORTS:
        raise BadWebhook(url, f"nothing is sent to port {port}; use 443, or one above 1023")
    return Target(parts.scheme, host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


def _literal(host: str, url: str) -> Address | None:
    """The address that a host is; None for a name. Numbers that only some programs read as addresses (0x7f.1, 2130706433) are
    refused."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        if _NUMERIC_HOST.fullmatch(host) or ":" in host or "%" in host:
            raise BadWebhook(url, "its host is an address in an unusual form") from None
        return None


def is_private(address: Address) -> bool:
    """Whether this is not an address of the public internet."""
    if address.version == 6 and address not in _IPV6_UNICAST:
        return True
    return not address.is_global or any(
        address in network for network in _PRIVATE_NETWORKS if network.version == address.version
    )


def check_addresses(url: str, host: str, addresses: Sequence[Address], allowed: Allowed, scheme: str) -> None:
    """Raises BadWebhook if one of these addresses may not be connected to."""
    if not addresses:
        raise BadWebhook(url, "its host has no address")
    for address in addresses:
        covered = allowed.covers(host, address)
        if is_private(address) and not covered:
            raise BadWebhook(url, f"its host is {address}, which is not an address of the public internet")
        if scheme == "http" and not covered:
            raise BadWebhook(url, "http is only for receivers that ONWARD_WEBHOOK_ALLOW_PRIVATE names; use https")


async def look_up(host: str, port: int) -> Sequence[str]:
    """All addresses of a host, from the system's resolver."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


async def resolve_target(url: str, target: Target, allowed: Allowed, resolve: Resolve = look_up) -> list[str]:
    """The addresses to connect to, and no others. Raises BadWebhook and OSError."""
    literal = _literal(target.host, url)
    addresses = (
        [literal] if literal is not None else [_address(text) for text in await resolve(target.host, target.port)]
    )
    check_addresses(url, target.host, addresses, allowed, target.scheme)
    return [str(address) for address in addresses]


def _address(text: str) -> Address:
    return ipaddress.ip_address(text.partition("%")[0])
