"""serve: the HTTP server and a worker in one process, until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
import urllib.parse
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from typing import Any

from onward.app.application import Onward
from onward.app.engines import RunningWorker
from onward.cli.args import connect
from onward.cli.commands.worker import log_lines, loop_factory, status_line, stop_on_signals
from onward.cli.demo.serve import demo_app, fill, introduce
from onward.cli.output.events import print_event
from onward.cli.output.screen import Screen
from onward.cli.output.text import count
from onward.cli.processes import child
from onward.config import Settings
from onward.core.caller import KEYLESS
from onward.errors import UsageError
from onward.server.access.auth import check_bind
from onward.server.http.tls import Certificate, certificate

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def serve(args: Namespace) -> int:
    """`onward serve`."""
    screen, supervised = Screen(args), child.attach()
    app = demo_app(args) if args.app is None else connect.load_app(args)
    given = {name: value for name in ("tls_cert", "tls_key") if (value := getattr(args, name)) is not None}
    app.settings = dataclasses.replace(app.settings, **given)
    screen.json |= app.settings.log == "json"
    if not screen.json:
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # our own line says that it started
    with asyncio.Runner(loop_factory=loop_factory()) as runner, log_lines(screen):
        return runner.run(_serve(screen, app, args, supervised))


async def _serve(screen: Screen, app: Onward, args: Namespace, supervised: child.Supervised | None) -> int:
    host = args.host or app.settings.host
    port = app.settings.port if args.port is None else args.port
    stop = asyncio.Event()
    tls = certificate(app.settings.tls_cert, app.settings.tls_key)
    with stop_on_signals(stop, supervised), _bound(host, port) as bound:
        if supervised is not None:
            supervised.watch(app.settings.grace_s)
        async with (
            _open_checked(app, host) as keyless,
            _worker(app, args) as worker,
            status_line(screen, app, worker, stop),
            contextlib.AsyncExitStack() as reports,
        ):
            served = app._make_asgi(hosts=_hosts(host, app.settings), keyless=keyless)
            disk = await fill(app) if args.app is None else None

            await reports.enter_async_context(child.reporting(supervised, worker))

            def ready() -> None:
                if supervised is not None:
                    supervised.report(ready=True)
                if disk is not None:
                    introduce(screen, disk, _address(bound, tls), args.db)
                print_event(screen, "ready", _introduction(app, worker, _address(bound, tls)))
                if keyless:
                    print_event(screen, "no key", KEYLESS)

            server = _server(served, grace=app.settings.grace_s, ready=ready, certificate=tls)
            running = asyncio.get_running_loop().create_task(server.serve([bound]))
            await asyncio.wait([running, asyncio.ensure_future(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
            print_event(
                screen, "stopping", "no new requests; running requests have time to end; a second signal exits at once"
            )
            server.stop_gracefully()
            await running
        print_event(screen, "stopped", "")
    return 0


@contextlib.asynccontextmanager
async def _open_checked(app: Onward, host: str) -> AsyncIterator[bool]:
    """Open the app and check the address. Yields whether there is no key yet, and people cannot sign in."""
    async with app:
        has_keys = await app.keys.any() or bool(app.settings.oidc_issuer)
        check_bind(host, has_keys)
        yield not has_keys


@contextlib.asynccontextmanager
async def _worker(app: Onward, args: Namespace) -> AsyncIterator[RunningWorker | None]:
    if args.no_worker or not app.handlers:
        # Events are sent and messages are received also without a worker.
        async with app.relay(), app.intakes() if not args.no_intake else contextlib.nullcontext():
            yield None
        return
    async with app.worker(slots=args.slots, queues=args.queues, intakes=not args.no_intake) as worker:
        yield worker


def _introduction(app: Onward, worker: RunningWorker | None, address: str) -> str:
    where = f"{address} on {app.store.where}"
    if worker is None:
        return f"{where} · no worker here"
    return f"{where} · worker {worker.id[-8:]}: {', '.join(sorted(app.handlers))} · {count(worker.slots, 'slot')}"


def _address(bound: socket.socket, tls: Certificate | None) -> str:
    host, port = bound.getsockname()[:2]
    return f"http{'' if tls is None else 's'}://{f'[{host}]' if ':' in host else host}:{port}"


def _server(served: Any, **options: Any) -> Any:
    try:
        from onward.server.http.uvicorn import Server, raise_file_limit  # noqa: PLC0415 -- an extra
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'onward[serve]'") from None
    raise_file_limit()
    return Server(served, **options)


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to this address. Raises UsageError with the cause if that fails."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # asyncio sets TCP_NODELAY only on a socket that names its protocol; without it every response takes 40 ms longer.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot listen at {host}:{port}: {error}; choose another with --port (0 takes a free one)"
        ) from None
    with sock:
        yield sock


def _hosts(host: str, settings: Settings) -> frozenset[str]:
    """The values of the Host header that the server accepts. An IPv6 address has brackets there."""
    public = urllib.parse.urlsplit(settings.public_url).hostname
    names = {*LOOPBACK, host, *settings.hosts.split(), *([public] if public else [])}
    return frozenset(f"[{name}]" if name.count(":") > 1 and name[0] != "[" else name for name in map(str.lower, names))
