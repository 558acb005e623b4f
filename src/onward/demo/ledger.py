"""A ledger: what was done to a world, line by line, by any process. A demo proves its claims with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Ledger:
    """A file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, line: dict[str, Any]) -> None:
        """Append a line, in one write, so that a kill leaves a whole line or none."""
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, json.dumps(line).encode() + b"\n")
        finally:
            os.close(fd)

    def lines(self) -> list[dict[str, Any]]:
        """All lines so far."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]
