"""Our side of the neighbours: makes the environment of each, and runs one workload of it in a child process.

An environment is made once and kept under .bench/ for as long as the pins it was made from stay the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Figure

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0


@dataclass(frozen=True)
class Peer:
    name: str
    workloads: frozenset[str]
    stores: frozenset[str] = frozenset({"postgres"})

    @property
    def pins(self) -> Path:
        return Path(__file__).with_name(f"{self.name}.txt")

    @property
    def version(self) -> str:
        """As pinned: the first requirement is the neighbour itself."""
        return next(line for line in self.pins.read_text().splitlines() if line and not line.startswith("#"))


PEERS = [
    Peer("pgqueuer", frozenset({"W1", "W2", "W4"})),
    Peer("absurd", frozenset({"W3", "W4"})),
    Peer("dbos", frozenset({"W3", "W4", "W5"}), frozenset({"postgres", "sqlite"})),
]


def run(peer: Peer, workload: str, url: str, quick: bool, directory: Path) -> list[Figure]:
    command = [str(environment(peer, directory)), "-m", f"bench.peers.{peer.name}_run", workload, url]
    if quick:
        command.append("--quick")
    # A session of its own, so that its workers can be ended with it.
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise RuntimeError(f"{peer.name} ended with status {process.returncode}")
    return [Figure(**json.loads(line)) for line in said.splitlines()]


def environment(peer: Peer, directory: Path) -> Path:
    """The interpreter of the neighbour's own environment."""
    venv = directory / f"venv-{peer.name}"
    stamp = venv / "pins.txt"
    if not stamp.exists() or stamp.read_text() != peer.pins.read_text():
        print(f"making an environment for {peer.version}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        install = [str(venv / "bin" / "python"), "-m", "pip", "install", "-qq", "-r", str(peer.pins)]
        subprocess.run(install, check=True, stdout=sys.stderr)
        shutil.copy(peer.pins, stamp)
    return venv / "bin" / "python"
