"""What the scripts of the neighbours share. Each is called by `host` in the neighbour's own environment:

    python -m bench.peers.NAME_run W3 URL [--quick]     measures, and prints one figure a line as JSON
    python -m bench.peers.NAME_run ROLE URL …           the same script as a worker in another process

A worker says one JSON value a line, and is told one line; moments are those of the monotonic clock, which on Linux is one
clock for all processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from bench.measure import Figure

Measure = Callable[[str, bool], list[Figure]]
Role = Callable[..., None]


def main(workloads: dict[str, Measure], roles: dict[str, Role]) -> None:
    what, url, *rest = sys.argv[1:]
    if what in roles:
        roles[what](url, *rest)
        return
    for figure in workloads[what](url, "--quick" in rest):
        say(asdict(figure))


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


class Worker:
    """This script again, in another process and a role; gone at the end of the `with`."""

    def __init__(self, role: str, url: str, *rest: object, module: str | None = None) -> None:
        if module is None:
            script = sys.modules["__main__"].__spec__
            assert script is not None, "run me with python -m"
            module = script.name
        command = [sys.executable, "-m", module, role, url, *map(str, rest)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def hear(self) -> Any:
        """The next thing the worker says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with status {self._process.wait()}")
        return json.loads(line)

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def kill9(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill9()


def wait_to_be_told() -> None:
    say("ready")
    sys.stdin.readline()
