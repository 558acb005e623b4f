"""Artifacts in a bucket of S3, or of anything that speaks the same: PREFIX/TASK/NAME.

Keys, region and endpoint come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL …),
as with every other tool. A put is whole or not at all, and durable when the server says so.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
from collections.abc import Iterator
from typing import Any

from onward.errors import StoreUnavailable

MOST = 100_000_000
"""Bytes of the largest artifact, as the keeper puts them there: a bucket that says more is not read."""

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class Bucket:
    """A shelf that is a bucket, or a part of one."""

    def __init__(self, bucket: str, prefix: str = "") -> None:
        self._bucket, self._prefix = bucket, prefix.strip("/")

    @functools.cached_property
    def _store(self) -> Any:
        # Its plain verbs, in our threads. Its asynchronous ones end a process with SIGABRT now and then: their threads still
        # call Python while it shuts down (18 of 25 short programs, with 0.12).
        from obstore.store import S3Store  # noqa: PLC0415 -- an extra

        plain = any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS)
        return S3Store(
            self._bucket,
            prefix=self._prefix or None,
            client_options={"allow_http": plain, "timeout": "30s", "connect_timeout": "5s"},
            retry_config={"max_retries": 2, "retry_timeout": datetime.timedelta(seconds=10)},  # the caller is patient
        )

    def put(self, task_id: str, name: str, data: bytes) -> None:
        """One object."""
        with self._in_words("written to"):
            self._store.put(f"{task_id}/{name}", data)

    def get(self, task_id: str, name: str) -> bytes | None:
        """The bytes of the object."""
        with self._in_words("read from"):
            try:
                found = self._store.get(f"{task_id}/{name}")
                if (size := int(found.meta["size"])) > MOST:
                    raise ValueError(
                        f"the object {task_id}/{name} has {size:,} bytes, and none that was put there has more than {MOST:,}"
                    )
                return bytes(found.bytes())
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def drop(self, task_id: str) -> None:
        """Remove the task's objects."""
        with self._in_words("removed from"):
            for page in self._store.list(prefix=task_id):
                self._store.delete([one["path"] for one in page])

    @contextlib.contextmanager
    def _in_words(self, verb: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever it is, the bytes are not there, and somebody has to see to it
            said = "it does not exist" if "NoSuchBucket" in str(error) else str(error).partition("\n")[0]
            raise StoreUnavailable(
                f"artifacts cannot be {verb} the bucket {self._bucket!r}: {said:.300}; check the endpoint, the bucket and the "
                "keys (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION)"
            ) from None
