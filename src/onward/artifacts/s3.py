"""Artifacts in an S3 bucket, or one with the same API: PREFIX/TASK/NAME.

Keys, region and endpoint come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL …), as
with other tools. A put stores all bytes or none, and is durable when the server confirms it.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
from collections.abc import Iterator
from typing import Any

from onward.artifacts.keeper import MAX_ARTIFACT_BYTES
from onward.errors import StoreUnavailable

ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class Bucket:
    """A shelf in a bucket, or under a prefix of one."""

    def __init__(self, bucket: str, prefix: str = "") -> None:
        self._bucket, self._prefix = bucket, prefix.strip("/")

    @functools.cached_property
    def _store(self) -> Any:
        # Its blocking methods, in our threads. Its asynchronous ones sometimes end a process with SIGABRT: their threads still
        # call Python while it shuts down (18 of 25 short programs, with 0.12).
        from obstore.store import S3Store  # noqa: PLC0415 -- an extra

        allow_http = any(os.environ.get(name, "").startswith("http://") for name in ENDPOINT_VARIABLES)
        return S3Store(
            self._bucket,
            prefix=self._prefix or None,
            client_options={"allow_http": allow_http, "timeout": "30s", "connect_timeout": "5s"},
            retry_config={"max_retries": 2, "retry_timeout": datetime.timedelta(seconds=10)},  # the caller tries again
        )

    def put(self, task_id: str, name: str, data: bytes) -> None:
        """Store one object."""
        with self._as_store_unavailable("written to"):
            self._store.put(f"{task_id}/{name}", data)

    def get(self, task_id: str, name: str) -> bytes | None:
        """The bytes of the object."""
        with self._as_store_unavailable("read from"):
            try:
                response = self._store.get(f"{task_id}/{name}")
                if (size := int(response.meta["size"])) > MAX_ARTIFACT_BYTES:
                    raise ValueError(
                        f"the object {task_id}/{name} has {size:,} bytes, and the keeper stores none with more than {MAX_ARTIFACT_BYTES:,}"
                    )
                return bytes(response.bytes())
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def drop(self, task_id: str) -> None:
        """Delete the task's objects."""
        with self._as_store_unavailable("removed from"):
            for page in self._store.list(prefix=task_id):
                self._store.delete([entry["path"] for entry in page])

    def names(self) -> Iterator[tuple[str, str]]:
        """Reads page by page."""
        with self._as_store_unavailable("listed in"):
            for page in self._store.list():
                for entry in page:
                    task_id, _, name = str(entry["path"]).partition("/")
                    yield task_id, name

    @contextlib.contextmanager
    def _as_store_unavailable(self, verb: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever the error is, the bytes are not there, and an operator has to act
            reason = "it does not exist" if "NoSuchBucket" in str(error) else str(error).partition("\n")[0]
            raise StoreUnavailable(
                f"artifacts cannot be {verb} the bucket {self._bucket!r}: {reason:.300}; check the endpoint, the bucket and the "
                "keys (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION)"
            ) from None
