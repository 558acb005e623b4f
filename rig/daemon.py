"""What the starters of brokers share: a process with a folder of its own, which is killed and started again on the same port and data.

    with Valkey() as valkey:
        valkey.kill9()      # as when the power fails
        valkey.start()      # the same port, the same data

Nothing is installed on the system, and a server ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from rig import server


class Daemon:
    """One server. Subclasses name the command, and say when the server answers."""

    name: ClassVar[str]
    start_timeout_s: ClassVar[float] = 20.0
    stop_timeout_s: ClassVar[float] = 20.0

    def __init__(self) -> None:
        self.port = server.free_port()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """The data and the log; removed by `close`."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"onward-{self.name}-"))
        return self._folder

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.poll() is None else None

    def command(self) -> list[str | Path]:
        """The program and its arguments. Raises Unavailable when the server cannot be had here."""
        raise NotImplementedError

    def environment(self) -> dict[str, str] | None:
        """The environment of the process; None for ours."""
        return None

    def answers(self) -> bool:
        """Whether clients are served."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2):
            return True
        return False

    def start(self) -> Self:
        """Returns when the server answers. Running already: nothing happens."""
        if self.pid is not None:
            return self
        command = [*server.leash("KILL"), *map(str, self.command())]
        server.close_at_exit(self)
        environment = self.environment()

        def spawn() -> subprocess.Popen[bytes]:
            with self.log.open("ab") as output:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    cwd=self.folder,
                    start_new_session=True,
                )

        self._process = server.in_lasting_thread(spawn)
        end = time.monotonic() + self.start_timeout_s
        while not self.answers():
            if self.pid is None or time.monotonic() > end:
                self.kill9()
                raise RuntimeError(f"{self.name} does not answer; its log:\n{server.tail(self.log)}")
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        """An orderly stop; returns when the process is gone."""
        if self.pid is None or self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(self.stop_timeout_s)

    def kill9(self) -> None:
        """As when the power fails; returns when the process is gone."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Stop the process where it is: connections stay open, and nothing is answered."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the server, and remove its data."""
        if not server.may_close(self):
            return
        self.kill9()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
