"""TLS: the server, the metrics port and the client, with real certificates."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onward import Client, Onward, SyncClient
from onward.errors import BadSetting, Unreachable, UsageError
from onward.server.http import sending, tls
from onward.server.http.tls import certificate
from onward.server.http.uvicorn import Server
from rig.processes import Child
from rig.server import free_port
from tests.certificates import PASSPHRASE, Authority, Pair
from tests.cli.test_cli_serve import environment, here
from tests.kit import eventually, only_memory


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextlib.asynccontextmanager
async def serving_tls(app: Onward, pair: Pair) -> AsyncIterator[str]:
    """The address of a server with this certificate, while the block lasts."""
    async with running_tls(app, pair) as (address, _):
        yield address


@contextlib.asynccontextmanager
async def running_tls(app: Onward, pair: Pair) -> AsyncIterator[tuple[str, Server]]:
    """The same, and the server."""
    with socket.socket(proto=socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        ready = asyncio.Event()
        secured = certificate(str(pair.cert), str(pair.key))
        server = Server(app.asgi(keyless=True), grace=5, ready=ready.set, certificate=secured)
        running = asyncio.create_task(server.serve([bound]))
        try:
            await ready.wait()
            yield f"https://127.0.0.1:{bound.getsockname()[1]}", server
        finally:
            server.stop_gracefully()
            await running


@only_memory
async def test_a_client_with_the_authority_is_served_over_tls(app: Onward, authority: Authority) -> None:
    @app.task
    async def greet(ctx: Any, name: str) -> str:
        return f"hello {name}"

    async with app.worker(), serving_tls(app, authority.issue("server")) as address:
        async with Client(address, ca_file=authority.file) as client:
            task = await client.submit("greet", "you")
            assert await task.result(timeout=30) == "hello you"
            assert [update async for update in client.follow(task.id)]
        async with Client(address, patience=0) as stranger:
            with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.list()

        def without_a_loop() -> int:
            with SyncClient(address, ca_file=str(authority.file)) as client:
                return len(client.list()[0])

        assert await asyncio.to_thread(without_a_loop) == 1


@only_memory
async def test_versions_before_1_2_and_plain_http_are_refused(app: Onward, authority: Authority) -> None:
    async with serving_tls(app, authority.issue("server")) as address:
        port = int(address.rpartition(":")[2])
        assert certificate(*map(str, _paths(authority.issue("x")))).context.minimum_version is ssl.TLSVersion.TLSv1_2  # type: ignore[union-attr]
        context = ssl.create_default_context(cafile=authority.file)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context.minimum_version = context.maximum_version = version
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            assert writer.get_extra_info("ssl_object").version() == version.name.replace("_", ".")
            writer.close()
        old = ssl.create_default_context(cafile=authority.file)
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=old)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"200" not in await reader.read()
        writer.close()


@only_memory
async def test_a_client_that_stops_reading_is_disconnected_over_tls_too(
    app: Onward, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SEND_TIMEOUT_S", 0.2)

    @app.task
    async def echo(ctx: Any, text: str) -> str:
        return text

    async with app.worker(), running_tls(app, authority.issue("server")) as (address, server):
        task = await app.submit("echo", "x" * 3_000_000)
        await task.result(60)
        connections, trust = server.server_state.connections, ssl.create_default_context(cafile=authority.file)

        def request() -> ssl.SSLSocket:
            plain = socket.socket()
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.connect(("127.0.0.1", int(address.rpartition(":")[2])))
            secured = trust.wrap_socket(plain, server_hostname="localhost")
            secured.sendall(f"GET /api/tasks/{task.id} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            return secured

        with await asyncio.to_thread(request):
            await eventually(lambda: _holds(len(connections) == 1))
            await eventually(lambda: _holds(len(connections) == 0))


@only_memory
async def test_a_handshake_has_a_time_limit(app: Onward, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.server.http.uvicorn.HANDSHAKE_TIMEOUT_S", 0.2)
    async with serving_tls(app, authority.issue("server")) as address:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


def _paths(pair: Pair) -> tuple[Path, Path]:
    return pair.cert, pair.key


@only_memory
async def test_a_renewed_certificate_is_used_by_new_connections(
    app: Onward, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr("onward.server.http.uvicorn.SWEEP_TICKS", 1)
    used, renewed = authority.issue("used"), authority.issue("renewed")
    async with serving_tls(app, used) as address:
        port = int(address.rpartition(":")[2])
        assert await _presented(port, authority) == "used"
        shutil.copy(renewed.cert, used.cert)  # not its key yet
        assert await eventually(lambda: _holds("the old one stays" in caplog.text))
        assert await _presented(port, authority) == "used"
        shutil.copy(renewed.key, used.key)

        async def renewed_is_presented() -> bool:
            return await _presented(port, authority) == "renewed"

        assert await eventually(renewed_is_presented)


async def _holds(condition: bool) -> bool:
    return condition


async def _presented(port: int, authority: Authority) -> str:
    """The common name of the certificate that a server presents."""
    context = ssl.create_default_context(cafile=authority.file)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    subject = writer.get_extra_info("peercert")["subject"]
    writer.close()
    return str(dict(part[0] for part in subject)["commonName"])


@only_memory
async def test_the_metrics_port_has_the_same_certificate(authority: Authority, url: str) -> None:
    pair, port = authority.issue("metrics"), free_port()
    app = Onward(url, metrics_port=port, tls_cert=str(pair.cert), tls_key=str(pair.key))

    @app.task
    async def work(ctx: Any) -> None: ...

    def scraped() -> str:
        context = ssl.create_default_context(cafile=authority.file)
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=context) as answer:
            return str(answer.read().decode())

    async with app.worker():
        with socket.create_connection(("127.0.0.1", port)):  # a silent client delays no other
            assert "onward_workers" in await asyncio.to_thread(scraped)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda pair, other: pair.key.unlink(), "ONWARD_TLS_KEY .* a readable PEM file"),
        (lambda pair, other: pair.cert.unlink(), "ONWARD_TLS_CERT .* a readable PEM file"),
        (lambda pair, other: pair.cert.write_text("x"), "ONWARD_TLS_CERT .* a certificate in PEM"),
        (lambda pair, other: shutil.copy(other.key, pair.key), "the key of the certificate .* belongs to another"),
    ],
)
def test_a_pair_that_cannot_be_used_is_refused(authority: Authority, spoil: Any, sentence: str) -> None:
    pair = authority.issue("server")
    spoil(pair, authority.issue("other"))
    with pytest.raises(BadSetting, match=sentence):
        certificate(str(pair.cert), str(pair.key))


def test_a_key_with_a_passphrase_and_half_a_pair_are_refused(authority: Authority) -> None:
    pair = authority.issue("server", passphrase=PASSPHRASE)
    with pytest.raises(BadSetting, match="without a passphrase"):
        certificate(str(pair.cert), str(pair.key))
    with pytest.raises(BadSetting, match=r"ONWARD_TLS_KEY .* TLS needs both"):
        certificate(str(pair.cert), "")
    assert certificate("", "") is None


def test_a_private_key_readable_by_all_users_is_reported(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pair = authority.issue("server")
    with caplog.at_level(logging.WARNING):
        certificate(str(pair.cert), str(pair.key))
        assert caplog.text == ""
        pair.key.chmod(0o644)
        certificate(str(pair.cert), str(pair.key))
    assert "every user of this machine can read or change the TLS key" in caplog.text


def test_a_client_refuses_a_file_that_has_no_certificate(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("no certificate")
    for name in ("none.pem", "missing.pem"):
        with pytest.raises(UsageError, match="no readable PEM file"):
            Client("https://localhost", ca_file=tmp_path / name)


def test_onward_serve_takes_a_certificate(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("server")
    words = ("serve", "tests.cli.shop:app", "--port", "0", "--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    with Child.module("onward", *words, cwd=tmp_path, env=environment()) as child:
        line = child.wait_for("https://127.0.0.1:", timeout=60)
        address = "https://" + str(line).partition("https://")[2].split(" ")[0]
        context = ssl.create_default_context(cafile=authority.file)
        with urllib.request.urlopen(f"{address}/healthz", context=context) as answer:
            assert answer.status == 200
    refused = here(tmp_path, *words[:-2])
    assert refused.status == 2
    assert "ONWARD_TLS_KEY" in refused.err
