"""A ledger of effects: many processes note in one file what they did to the world, and a test counts it afterwards.

    ledger = Ledger(path)
    ledger.write("charge", order, amount)           # in any process, also one that is killed a moment later
    assert ledger.counts(by=1) == {"order-7": 1}    # done once, no matter who died

A line is one write() to a file opened for appending, which the kernel does not mix with another process's. It is in the
kernel's hands when `write` returns, so it survives kill -9 of the writer; it is not fsynced.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ledger:
    """The ledger in the file `path`, which need not exist yet. It holds nothing but the path: pickle it, fork it."""

    path: Path

    def write(self, *fields: object) -> None:
        line = json.dumps(fields).encode() + b"\n"
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            written = os.write(file, line)
        finally:
            os.close(file)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes went into the ledger {self.path}")

    def read(self) -> list[list[Any]]:
        """The lines in the order in which they were written, each as the list of its fields. One that is just being written
        is not there yet."""
        try:
            text = Path(self.path).read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def counts(self, by: int | Callable[[list[Any]], Hashable] | None = None) -> Counter[Any]:
        """How often each value occurs: of the field number `by`, of what `by` makes of a line, or of whole lines."""
        match by:
            case None:
                return Counter(json.dumps(line) for line in self.read())
            case int():
                return Counter(line[by] for line in self.read())
            case _:
                return Counter(by(line) for line in self.read())
