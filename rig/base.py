"""The base of every server that the rig starts as a child process: a port, a directory, start, stop, kill, freeze.

    class Valkey(Server):
        title = "Valkey"

        def command(self) -> list[str]:
            return [str(obtain()), "--port", str(self.port), "--dir", str(self.folder("data"))]

        def ready(self) -> bool:
            return ping(self.port)

    with Valkey() as valkey:
        valkey.kill()               # SIGKILL to all its processes at once, as when the power fails
        valkey.start()              # the same port, the same data
        valkey.freeze()             # SIGSTOP: its connections stay open and nothing answers
        valkey.thaw()

A subclass gives `command()` and `ready()`, and often `prepare()`, which installs the program and writes its configuration.

No process of a server survives this one. `close()` runs at the end of the process at the latest. If this process is killed, the kernel
kills the server, and the next server of the same kind kills the processes that the server had started and removes its directory.

A session fixture of pytest starts one server for each process of pytest-xdist, as `tests/conftest.py` does for PostgreSQL.
"""

from __future__ import annotations

import abc
import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from rig import server

HOME_VARIABLE = "RIG_SERVER_HOME"
"""Set in the environment of a server to its directory. The processes of a server inherit it, and are found by it."""
PORT_TAKEN = re.compile(
    rb"could not bind|address (is )?already in use|EADDRINUSE|eaddrinuse|port \d+ is already", re.IGNORECASE
)
MAX_PORTS_TRIED = 10
PORT_WAIT_S = 0.3
"""Seconds between two starts on a port that is taken and has to be kept."""
READY_PAUSE_S = 0.01
PROBE_TIMEOUT_S = 5.0
SWEEP_AFTER_S = 60.0
"""Age of a directory without an owner before it is removed: its owner may not have locked it yet, and its server may still be ending."""


class StartStop(abc.ABC):
    """`with` starts it and closes it."""

    @abc.abstractmethod
    def start(self) -> Self: ...

    @abc.abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Server(StartStop):
    """A server on 127.0.0.1 with a directory of its own.

    In a `directory` of the caller's the data stays. Without one, the server has a temporary directory, which `close()` removes.
    Without a `port`, the server takes a free one; the first start may choose another if that one is taken by then.
    """

    title: ClassVar[str]
    """The name of the server in errors, and in the name of its temporary directory."""
    start_timeout_s: ClassVar[float] = 30.0
    stop_timeout_s: ClassVar[float] = 20.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    orphan_signal: ClassVar[str] = "KILL"
    """The signal that the kernel sends to the server when this process dies."""
    never_root: ClassVar[bool] = False
    """The server refuses to run as root: it runs in the guise of `rig.server`."""
    not_ready: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """Errors of `ready()` that mean "not yet"."""

    def __init__(self, directory: Path | None = None, port: int | None = None) -> None:
        self.directory = directory
        self._keeps_port = port is not None
        self._process: subprocess.Popen[bytes] | None = None
        self._temporary: _Temporary | None = None
        self.port = port or 0
        self.choose_ports()

    # ── for a subclass to give ───────────────────────────────────────────────────────────────────────────────────

    @abc.abstractmethod
    def command(self) -> Sequence[str | Path]:
        """The program and its arguments. The process that starts is the server: a script has to `exec` its program."""

    @abc.abstractmethod
    def ready(self) -> bool:
        """Whether the server answers, by a real request that ends within seconds."""

    def prepare(self) -> None:
        """Installs the program and writes the configuration, before each start. Raises Unavailable if this machine cannot have it."""

    def environ(self) -> Mapping[str, str]:
        return os.environ

    def choose_ports(self) -> None:
        """Chooses free ports. A server with more than one port adds them here, since all of them may have to change."""
        if not self._keeps_port:
            self.port = server.free_port()

    # ── its places ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def home(self) -> Path:
        if self.directory is not None:
            return self.directory.absolute()
        if self._temporary is None:
            self._temporary = _Temporary(f"onward-{self.title.lower().replace(' ', '-')}-")
            server.close_at_exit(self)
        return self._temporary.path

    def folder(self, name: str) -> Path:
        """A directory in `home` that the server may write to, and that stays until `close()`."""
        return self._give(self.home / name)

    @property
    def log(self) -> Path:
        """The file with the output of the server, of all its starts."""
        return self.home / "log"

    @property
    def pid(self) -> int | None:
        """The pid of the server while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    # ── start and stop ───────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        """Returns when the server answers; a server that runs already is left alone.

        Raises Unavailable if this machine cannot have the server, and RuntimeError with the end of its log if it does not answer
        within `start_timeout_s`.
        """
        if self.pid is not None:
            return self
        server.close_at_exit(self)
        self._give(self.home)
        for _ in range(MAX_PORTS_TRIED):
            self.prepare()
            if self._launch():
                self._keeps_port = True
                return self
            if self._keeps_port:
                time.sleep(PORT_WAIT_S)
            else:
                self.choose_ports()
        raise self._failure(f"port {self.port} is taken")

    def stop(self, timeout_s: float | None = None) -> None:
        """Asks the server to end, and returns when it has ended. Raises TimeoutError if it has not; it may still end later."""
        self._end(self.stop_signal, timeout_s or self.stop_timeout_s)

    def kill(self) -> None:
        """Kills all processes of the server with SIGKILL, and returns when all are gone. The data stays as it is."""
        if self._process is None:
            return
        processes = self._stand_still()
        _send(processes, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)  # where there is no /proc, the others of its group
        self._process.wait()
        while any(server.alive(pid) for pid in processes):
            time.sleep(0.002)

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def freeze(self) -> None:
        """Stops all processes of the server with SIGSTOP: its connections stay open, and nothing answers."""
        self._stand_still()

    def thaw(self) -> None:
        _send(self.processes(), signal.SIGCONT)

    def close(self) -> None:
        """Ends the server in every case, and removes its temporary directory."""
        if not server.may_close(self):
            return
        try:
            self.kill()
        finally:
            self._remove()

    def processes(self) -> list[int]:
        """The pids of the server, of the processes below it, and of those that have left it and run in the background."""
        below = [self._process.pid] if self.pid is not None and self._process is not None else []
        for pid in below:
            below += server.children(pid)
        return list(dict.fromkeys([*below, *_marked(self.home)]))

    def http_ready(self, path: str = "/") -> bool:
        """For `ready()`: whether the server answers an HTTP request, with any status."""
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PROBE_TIMEOUT_S).close()
        except urllib.error.HTTPError:
            return True
        return True

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _launch(self) -> bool:
        """Starts the server and waits until it answers; False if its port is taken."""
        logged = self.log.stat().st_size if self.log.exists() else 0
        self._process = server.spawn(
            self.command(),
            self.log,
            {**self.environ(), HOME_VARIABLE: str(self.home)},
            orphan_signal=self.orphan_signal,
            never_root=self.never_root,
            cwd=self.home,
        )
        reason, deadline = "it does not answer", time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline:
            try:
                answers = self.ready()
            except self.not_ready as error:
                answers, reason = False, str(error)
            if self._process.poll() is not None:
                self.kill()
                with self.log.open("rb") as log:
                    log.seek(logged)
                    if PORT_TAKEN.search(log.read()):
                        return False
                raise self._failure(f"it ended with status {self._process.returncode}")
            if answers:
                return True
            time.sleep(READY_PAUSE_S)
        self.kill()
        raise self._failure(f"it was not ready within {self.start_timeout_s:g} s ({reason})")

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        if self._process is None or self.pid is None:
            return
        self.thaw()
        self._process.send_signal(number)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.title} has not ended within {timeout_s:g} s of {number.name}") from None
        self.kill()  # processes that the server has left behind

    def _stand_still(self) -> list[int]:
        """Stops processes until there are no more of them: a process that stands still starts none."""
        stopped: list[int] = []
        while new := [pid for pid in self.processes() if pid not in stopped]:
            _send(new, signal.SIGSTOP)
            while any(server.state(pid) not in {"", "T", "t", "Z", "X"} for pid in new):
                time.sleep(0.001)
            stopped += new
        return stopped

    def _give(self, directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        if self.never_root and (uid := server.guise().uid) is not None:
            os.chown(directory, uid, uid)
        return directory

    def _remove(self) -> None:
        if self._temporary is not None:
            self._temporary.remove()
            self._temporary = None

    def _failure(self, reason: str) -> RuntimeError:
        return RuntimeError(f"{self.title} did not start in {self.home}: {reason}. Its log:\n{server.tail(self.log)}")


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _marked(home: Path) -> list[int]:
    """The pids of all processes whose environment names this directory; empty where there is no /proc."""
    mark = f"{HOME_VARIABLE}={home}".encode()
    pids = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in file.read_bytes().split(b"\0") and server.alive(int(file.parent.name)):
                pids.append(int(file.parent.name))
    return pids


class _Temporary:
    """A directory that is removed with this process. The next process that makes one removes those of killed processes.

    Its owner holds a lock on the file `owner` in it; the kernel releases the lock when the owner dies.
    """

    def __init__(self, prefix: str) -> None:
        self._sweep(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock = os.open(self.path / "owner", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    @staticmethod
    def _sweep(prefix: str) -> None:
        for owner in Path(tempfile.gettempdir()).glob(f"{prefix}*/owner"):
            with contextlib.suppress(OSError), owner.open() as lock:
                if time.time() - owner.stat().st_mtime > SWEEP_AFTER_S:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _send(_marked(owner.parent), signal.SIGKILL)
                    shutil.rmtree(owner.parent, ignore_errors=True)
