"""Runs a command on a pseudo-terminal of a given size, and reads its output and its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte

from tests.cli.conftest import ROOT

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command on its own terminal."""

    def __init__(self, *words: str, columns: int = 80, rows: int = 40, cwd: Path = ROOT, **env: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._before = termios.tcgetattr(self._master)
        environment = {
            name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "LINES"}
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "onward", *words],
            stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env={**environment, "TERM": "xterm-256color", **env},
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.text = ""
        self._screen = pyte.HistoryScreen(columns, rows, history=5000)
        self._stream = pyte.ByteStream(self._screen)
        self.columns, self.rows = columns, rows

    # ── output ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def seen(self) -> list[str]:
        """The lines on the screen now, without empty lines at the end."""
        lines = [line.rstrip() for line in self._screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def page(self) -> str:
        return "\n".join(self.seen)

    def look(self, until: Callable[[str], object], seconds: float = 60) -> str:
        """Wait until the page fulfils a condition, and return it."""
        end = time.monotonic() + seconds
        while not until(self.page):
            assert time.monotonic() < end, self.page
            assert self._take(), f"it has ended: {self.page}"
        return self.page

    def read(self, until: str | None = None, seconds: float = 60) -> str:
        """Read the output up to a string or to its end."""
        end = time.monotonic() + seconds
        while until is None or until not in self.text:
            assert time.monotonic() < end, self.text
            if not self._take():
                break
        return self.text

    def _take(self) -> bool:
        if not select.select([self._master], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux raises EIO when the last writer is gone
            return False
        self.text += data.decode(errors="replace")
        self._stream.feed(data)
        return True

    @property
    def as_it_was(self) -> bool:
        """Whether the settings of the terminal are those before the command."""
        return termios.tcgetattr(self._master) == self._before

    # ── input ────────────────────────────────────────────────────────────────────────────────────────────────────

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, columns: int, rows: int) -> None:
        self._screen.resize(rows, columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.killpg(self._process.pid, signal.SIGWINCH)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ends(self, seconds: float = 60) -> int:
        """The exit status of the command; the terminal stays open."""
        end = time.monotonic() + seconds
        while self._process.poll() is None:
            assert time.monotonic() < end, self.page
            self._take()
        while select.select([self._master], [], [], 0)[0] and self._take():
            pass  # its last words
        return int(self._process.returncode)

    def status(self) -> int:
        self.read()
        return self._process.wait(20)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._master)


@contextlib.contextmanager
def terminal(*words: str, **options) -> Iterator[Terminal]:
    opened = Terminal(*words, **options)
    try:
        yield opened
    finally:
        opened.close()
