"""The guard: nothing inside is ever connected to, whatever a URL, a name server or a redirect says."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward import certificates
from onward.core.clock import SystemClock
from onward.errors import BadSetting, BadWebhook
from onward.sinks import guard
from onward.sinks.guard import Allowed, check, is_private
from onward.sinks.webhook import Webhooks
from tests.sinks.conftest import SECRET
from tests.sinks.receiver import Receiver

NOTHING = Allowed()

INSIDE = [
    "127.0.0.1",
    "127.1.2.3",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.255",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.8",
    "192.0.0.170",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "192.168.255.255",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]
OUTSIDE = [
    "8.8.8.8",
    "1.1.1.1",
    "93.184.216.34",
    "100.63.255.255",
    "172.32.0.1",
    "198.20.0.1",
    "2606:4700:4700::1111",
    "2a00:1450::1",
]

ODD = [
    "https://2130706433/", "https://0x7f000001/", "https://0x7f.1/", "https://0177.0.0.1/", "https://127.1/", "https://127.0.0.1./",
    "https://0/", "https://127.0.0.01/", "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://[fe80::1%25eth0]/",
    "https://localhost/", "https://LOCALHOST/", "https://localhost./", "https://a.localhost/", "https://printer.local/",
    "https://metadata.google.internal/", "https://router.home.arpa/",
    "https://user@example.com/", "https://user:pass@example.com/", "https://example.com@127.0.0.1/", "https://example.com\\@127.0.0.1/",
    "https://127.0.0.1#@example.com/", "https://exa mple.com/", "https://example.com/\r\nHost: inside", "https://ex\x00ample.com/",
    "https://\u2460.example/", "https://127\u30020\u30020\u30021/", "https://%31%32%37.0.0.1/", "https://example.com%2f@127.0.0.1/",
    "http://example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "unix:///run/x", "//example.com/",
    "example.com", "", "https://", "https:///x", "https://:443/", "https://example.com:0/", "https://example.com:22/",
    "https://example.com:25/", "https://example.com:99999/", "https://example.com:x/", "https://[::1", "https://-x.com/", "https://x-/",
    "https://example.com/#x", "https://example.com/" + "x" * 3000, "javascript:alert(1)", "https://..", "https://.example.com/",
]  # fmt: skip


@pytest.mark.parametrize("address", INSIDE)
def test_addresses_of_the_inside_are_closed(address: str) -> None:
    assert is_private(ipaddress.ip_address(address))
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(BadWebhook):
        check(f"https://{host}/", NOTHING)


@pytest.mark.parametrize("address", OUTSIDE)
def test_addresses_of_the_open_internet_are_open(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    assert check(f"https://{host}:8443/x?y", NOTHING).path == "/x?y"


@pytest.mark.parametrize("url", ODD)
def test_odd_urls_are_refused(url: str) -> None:
    with pytest.raises(BadWebhook):
        check(url, NOTHING)


def test_plain_ones_are_not() -> None:
    for url in (
        "https://example.com",
        "https://hooks.example.com:8443/a/b?c=d&e",
        "https://xn--mnchen-3ya.de/",
        "https://a_b.example.com/",
    ):
        assert check(url, NOTHING).scheme == "https"


@given(st.ip_addresses())
def test_whatever_python_calls_private_is_closed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
    ):
        assert is_private(address)


@given(st.text(max_size=60))
def test_no_text_makes_the_check_stumble(text: str) -> None:
    for url in (text, f"https://{text}", f"https://{text}/", f"https://example.com/{text}"):
        try:
            found = check(url, NOTHING)
        except BadWebhook:
            continue
        assert found.scheme == "https"
        assert found.host


def test_what_may_be_allowed() -> None:
    some = Allowed.parse("127.0.0.1, 10.0.0.0/8 hooks.internal [::1]")
    assert check("http://127.0.0.1:8000/", some).port == 8000
    assert check("https://10.2.3.4/", some).host == "10.2.3.4"
    assert check("http://hooks.internal/", some).host == "hooks.internal"
    for url in ("http://127.0.0.2/", "https://192.168.0.1/", "https://169.254.169.254/"):
        with pytest.raises(BadWebhook):
            check(url, some)
    assert check("http://169.254.169.254/", Allowed.parse("true")).host == "169.254.169.254"
    assert not Allowed.parse("")
    assert not Allowed.parse("false")
    for wrong in ("10.0.0.0/99", "a b/c", "300.1.1.1", "*"):
        with pytest.raises(BadSetting):
            Allowed.parse(wrong)


# ── on real sockets ──────────────────────────────────────────────────────────────────────────────────────────────────


class Names:
    """A name server that says what a test wants, and counts."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers, self.asked = list(answers), 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
async def inside() -> AsyncIterator[Receiver]:
    """Something on this machine that must not be reached, at 127.0.0.1 and at ::1."""
    inside = Receiver()
    async with inside.open(), inside.open("::1", inside.port):
        yield inside


def hooks(names: Names, allow: str = "") -> Webhooks:
    return Webhooks(SECRET, allow, SystemClock(), resolve=names)


@pytest.mark.parametrize("address", INSIDE)
async def test_a_name_of_the_inside_is_never_connected_to(inside: Receiver, address: str) -> None:
    """Alone, and among addresses that are well: one is enough."""
    for answers in ([address], ["93.184.216.34", address], [address, "93.184.216.34"]):
        names = Names(answers)
        said = await hooks(names).send("hook:x", "s", "id", inside.url(host="hooks.example.com", scheme="https"), b"{}")
        assert not said.ok
        assert "public internet" in said.detail
    assert inside.connections == 0


async def test_a_name_without_an_address_is_a_failure() -> None:
    said = await hooks(Names([])).send("hook:x", "s", "id", "https://hooks.example.com/", b"{}")
    assert not said.ok
    assert "no address" in said.detail


async def test_a_name_that_changes_between_the_look_and_the_connection_changes_nothing(inside: Receiver) -> None:
    async with Receiver().open("127.0.0.2", inside.port) as outside:
        for _ in range(5):
            names = Names(["127.0.0.2"], ["127.0.0.1"])
            url = inside.url(host="hooks.example.com")
            said = await hooks(names, "127.0.0.2").send("hook:x", "s", "id", url, b"{}")
            assert said.ok
            assert names.asked == 1
            again = await hooks(names, "127.0.0.2").send("hook:x", "s", "id", url, b"{}")
            assert not again.ok, "each attempt looks anew"
        assert inside.connections == 0
        assert {got.headers["host"] for got in outside.got} == {f"hooks.example.com:{inside.port}"}


async def test_the_proof_sees_a_client_that_looks_twice(inside: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual mistake, planted: check the addresses, then let whoever connects look them up again."""
    from onward.sinks import webhook

    names = Names(["127.0.0.2"], ["127.0.0.1"])
    pinned = webhook._pinned_backend

    def careless(addresses: list[str]) -> object:
        backend = pinned(addresses)
        connect = backend.connect_tcp

        async def again(**asked: Any) -> object:
            addresses[:] = await names(asked["host"], asked["port"])
            return await connect(**asked)

        backend.connect_tcp = again
        return backend

    monkeypatch.setattr(webhook, "_pinned_backend", careless)
    await hooks(names, "127.0.0.2").send("hook:x", "s", "id", inside.url(host="hooks.example.com"), b"{}")
    assert inside.connections == 1


async def test_no_proxy_of_the_environment_is_used(inside: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, inside.url(""))
    async with Receiver().open("127.0.0.2") as outside:
        said = await hooks(Names(["127.0.0.2"]), "127.0.0.2").send(
            "hook:x", "s", "id", outside.url(host="a.example.com"), b"{}"
        )
    assert said.ok
    assert inside.connections == 0


def _certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", key, "-out", certificate, "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate


async def test_the_certificate_is_that_of_the_name_and_not_of_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, certificate = await asyncio.to_thread(_certificate, tmp_path, "hooks.example.com")
    async with Receiver().open("127.0.0.2", context=context) as outside:
        names = Names(["127.0.0.2"])
        stranger = await hooks(names, "127.0.0.2").send(
            "hook:x", "s", "id", outside.url(host="hooks.example.com", scheme="https"), b"{}"
        )
        assert (stranger.ok, outside.got) == (False, []), "nobody vouches for it"
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        monkeypatch.setattr(certificates, "_load", certificates._load.__wrapped__)  # as in a process that starts now
        right = await hooks(names, "127.0.0.2").send(
            "hook:x", "s", "id", outside.url(host="hooks.example.com", scheme="https"), b"{}"
        )
        wrong = await hooks(names, "127.0.0.2").send(
            "hook:x", "s", "id", outside.url(host="other.example.com", scheme="https"), b"{}"
        )
    assert right.ok
    assert not wrong.ok
    assert outside.names[1:] == ["hooks.example.com", "other.example.com"]
    assert len(outside.got) == 1


async def test_the_system_is_asked_for_all_addresses() -> None:
    assert "127.0.0.1" in await guard.look_up("localhost", 443)
