"""A real RabbitMQ: Debian's packages of it and of Erlang, unpacked into the repository's .cache/ and not installed.

    with RabbitMQ() as rabbit:
        await aio_pika.connect(rabbit.url)

Root is not needed. The node has its own port mapper, cookie and home, so it meets no other node of the machine. Use durable classic or
quorum queues: they keep what was confirmed over a kill -9.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import ClassVar

from rig import server
from rig.daemon import Daemon
from rig.pgbouncer import _download
from rig.server import Unavailable

CACHE = Path(__file__).resolve().parents[1] / ".cache"
HOME = CACHE / "rabbitmq"
ERLANG = (
    "asn1", "base", "crypto", "eldap", "ftp", "inets", "mnesia", "os-mon", "parsetools", "public-key", "runtime-tools", "snmp",
    "ssl", "syntax-tools", "tftp", "tools", "xmerl",
)  # fmt: skip
PACKAGES = ("rabbitmq-server", *[f"erlang-{name}" for name in ERLANG])


class RabbitMQ(Daemon):
    """One node. The user is `guest`, who may come from this machine only."""

    name: ClassVar[str] = "rabbitmq"
    start_timeout_s: ClassVar[float] = 90.0

    def __init__(self, *, settings: dict[str, str] | None = None) -> None:
        super().__init__()
        self.settings = settings or {}
        self._epmd_port, self._distribution_port = server.free_port(), server.free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._root: Path | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def command(self) -> list[str | Path]:
        self._root = root = obtain()
        settings = {"listeners.tcp.1": f"127.0.0.1:{self.port}", "log.console.level": "warning"} | self.settings
        configuration = self.folder / "rabbitmq.conf"
        configuration.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        (self.folder / "advanced.config").write_text("[{kernel, [{inet_dist_use_interface, {127,0,0,1}}]}].\n")
        (self.folder / "plugins").write_text("[].\n")
        self._start_port_mapper(root)
        return [next(root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"))]

    def environment(self) -> dict[str, str]:
        assert self._root is not None
        folder = self.folder
        return {
            "HOME": str(folder),  # where Erlang keeps its cookie
            "PATH": f"{self._root}/usr/lib/erlang/bin:{os.environ.get('PATH', '')}",
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"rig{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RUNNING_UNDER_SYSTEMD": "1",  # the script becomes the node, so that our pid is the node's
        }

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"
        return False

    def close(self) -> None:
        super().close()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def _start_port_mapper(self, root: Path) -> None:
        """Ours, on a port of its own: one that Erlang starts by itself outlives us."""
        if self._epmd is not None and self._epmd.poll() is None:
            return
        program = next(root.glob("usr/lib/erlang/erts-*/bin/epmd"))
        command = [*server.leash("KILL"), str(program), "-address", "127.0.0.1", "-port", str(self._epmd_port)]
        self._epmd = server.in_lasting_thread(
            lambda: subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder
            )
        )


def obtain() -> Path:
    """The folder with the unpacked packages, fetched once for all processes of a test run. Raises Unavailable."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "rabbitmq.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not HOME.exists():
            _unpack()
    return HOME


def _unpack() -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unavailable(
            "no RabbitMQ here: it is unpacked from Debian's packages, and there is no apt-get and dpkg-deb"
        )
    work = CACHE / f"unpacking-rabbitmq-{os.getpid()}"
    work.mkdir()
    try:
        _download(PACKAGES, work, work / "tree")
        for script in (work / "tree").glob("usr/lib/erlang/bin/*"):
            if script.is_file() and not script.is_symlink() and script.read_bytes()[:2] == b"#!":
                text = script.read_text().replace("ROOTDIR=/usr/lib/erlang", f"ROOTDIR={HOME}/usr/lib/erlang")
                script.write_text(text)
        (work / "tree").rename(HOME)
    finally:
        shutil.rmtree(work, ignore_errors=True)
