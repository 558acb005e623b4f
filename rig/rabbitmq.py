"""A real RabbitMQ: Debian's packages of it and of Erlang, unpacked into the repository's .cache/ and not installed.

    with RabbitMQ() as rabbit:
        await aio_pika.connect(rabbit.url)

Root is not needed. The node has its own port mapper, cookie and home, so it meets no other node of the machine. Use durable classic or
quorum queues: they keep what was confirmed over a kill -9.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
from pathlib import Path

from rig import server
from rig.base import PROBE_TIMEOUT_S, Server
from rig.pgbouncer import _download
from rig.server import Unavailable

CACHE = Path(__file__).resolve().parents[1] / ".cache"
HOME = CACHE / "rabbitmq"
ERLANG = (
    "asn1", "base", "crypto", "eldap", "ftp", "inets", "mnesia", "os-mon", "parsetools", "public-key", "runtime-tools", "snmp",
    "ssl", "syntax-tools", "tftp", "tools", "xmerl",
)  # fmt: skip
PACKAGES = ("rabbitmq-server", *[f"erlang-{name}" for name in ERLANG])


class RabbitMQ(Server):
    """One node with its port mapper. The user is `guest`, who may come from this machine only."""

    title = "RabbitMQ"
    start_timeout_s = 90.0
    _epmd: subprocess.Popen[bytes] | None = None

    def __init__(self, *, settings: dict[str, str] | None = None) -> None:
        super().__init__()
        self.settings = settings or {}

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def choose_ports(self) -> None:
        super().choose_ports()
        self._epmd_port, self._distribution_port = server.free_port(), server.free_port()

    def prepare(self) -> None:
        self._root = obtain()
        settings = {"listeners.tcp.1": f"127.0.0.1:{self.port}", "log.console.level": "warning"} | self.settings
        (self.home / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        (self.home / "advanced.config").write_text("[{kernel, [{inet_dist_use_interface, {127,0,0,1}}]}].\n")
        (self.home / "plugins").write_text("[].\n")
        if self._epmd is None:
            program = next(self._root.glob("usr/lib/erlang/erts-*/bin/epmd"))
            command = [program, "-address", "127.0.0.1", "-port", str(self._epmd_port)]
            self._epmd = server.spawn(command, self.log, self.environ(), cwd=self.home)

    def command(self) -> list[str | Path]:
        return [next(self._root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"))]

    def environ(self) -> dict[str, str]:
        home = self.home
        return {
            "HOME": str(home),  # where Erlang keeps its cookie
            "PATH": f"{self._root}/usr/lib/erlang/bin:{os.environ.get('PATH', '')}",
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"rig{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RUNNING_UNDER_SYSTEMD": "1",  # the script becomes the node, so that our pid is the node's
        }

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PROBE_TIMEOUT_S) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"

    def kill(self) -> None:
        super().kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def messages(self, queue: str) -> int:
        """How many messages a quorum queue has, with those that consumers hold. AMQP does not tell it: this asks the node, which takes some 20 ms."""
        question = (
            f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)), '
            "{ok, {_, N}, _} = ra:leader_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_total/1), N.\n"
        )
        cookie = (self.home / ".erlang.cookie").read_text().strip()
        program = next(self._root.glob("usr/lib/erlang/erts-*/bin/erl_call"))
        asked = subprocess.run(
            [program, "-c", cookie, "-n", f"rig{self.port}@localhost", "-e"],
            input=question,
            capture_output=True,
            text=True,
            check=True,
            env=self.environ(),
            timeout=20,
        )
        answer = asked.stdout.strip().removeprefix("{ok, ").removesuffix("}")
        if not answer.isdecimal():  # the queue is being recovered
            raise RuntimeError(f"{self.title} does not say how many messages {queue} has: {answer[:300]}")
        return int(answer)


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
