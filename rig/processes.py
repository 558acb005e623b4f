"""Python child processes that a test can listen to, freeze and kill.

    with Child.code(SOURCE, "argument") as child:
        child.wait_for("ready")     # a line of its stdout
        child.freeze()              # SIGSTOP: it lives and does nothing, like a machine that hangs
        child.thaw()
        child.kill9()

A child and all it starts is gone when the block is left and when this process ends; the child itself also when this
process is killed. The methods block; in a running loop use `await asyncio.to_thread(child.wait_for, "ready")`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from rig import server


class Child:
    """A Python process, started at once; `arguments` are the interpreter's, `env` is added to our environment."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
        command = [*server.leash("KILL"), sys.executable, "-u", *arguments]
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._unread: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = server.in_lasting_thread(
            lambda: subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                start_new_session=True,  # a group of its own, so that close() finds what the child has started
            )
        )
        self.pid = self._process.pid
        self._readers = [
            threading.Thread(target=self._read_output, args=[self._process.stdout], daemon=True),
            threading.Thread(target=self._read_errors, args=[self._process.stderr], daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        server.close_at_exit(self)

    @classmethod
    def code(cls, source: str, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Self:
        return cls("-c", source, *arguments, env=env, cwd=cwd)

    @classmethod
    def module(cls, name: str, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Self:
        return cls("-m", name, *arguments, env=env, cwd=cwd)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def line(self, timeout: float = 60) -> str:
        """The next line of its stdout. TimeoutError if there is none in time, EOFError if there will never be one."""
        try:
            line = self._unread.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no line within {timeout} s from {self._account()}") from None
        if line is None:
            self._unread.put(None)  # whoever asks again hears the same
            raise EOFError(f"no more lines from {self._account()}")
        return line

    def wait_for(self, text: str, timeout: float = 60) -> str:
        """The next line that contains `text`; those before it are passed over."""
        deadline = time.monotonic() + timeout
        while True:
            line = self.line(max(0.001, deadline - time.monotonic()))
            if text in line:
                return line

    def wait(self, timeout: float = 60) -> int:
        """Its exit status, negative for the signal that killed it; all it said is in `lines` and `errors` by then."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"no end within {timeout} s of {self._account()}") from None
        for reader in self._readers:
            reader.join(1)  # not for ever: a grandchild may hold the pipe
        return status

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill9(self) -> int:
        """Kills the child alone, as the kernel's out-of-memory killer would, and returns its exit status."""
        self.signal(signal.SIGKILL)
        return self.wait()

    def close(self) -> None:
        """Kills the child and everything in its process group."""
        if not server.may_close(self):
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read_output(self, pipe: IO[bytes]) -> None:
        for raw in pipe:
            line = raw.decode(errors="replace").rstrip("\n")
            self.lines.append(line)
            self._unread.put(line)
        self._unread.put(None)

    def _read_errors(self, pipe: IO[bytes]) -> None:
        self.errors.extend(raw.decode(errors="replace").rstrip("\n") for raw in pipe)

    def _account(self) -> str:
        status = self._process.poll()
        state = "running" if status is None else f"ended with {status}"
        said = "\n".join(["stdout:", *self.lines[-20:], "stderr:", *self.errors[-40:]])
        return f"child {self.pid} ({state}); {said}"
