"""Values that are too large for a payload of another engine: they are stored where artifacts are, and the engine has a reference.

Inputs, the data of records and messages, and contents go through `pack` before the engine gets them, and through `unpack` after it gave them. A
reference begins with a mark that no other value has: `pack` also stores a value that begins with it.
"""

from __future__ import annotations

import json
import re

from onward.artifacts.keeper import Artifacts
from onward.core.wire import encode
from onward.errors import OnwardError

KEY = "$onward.shelf"
_REFERENCE = re.compile(r'\{"\$onward\.shelf"')
_CHILD_END = re.compile(r'\{"state":"[a-z]+",(?="\$onward\.shelf")')
"""The end of a child that is a reference: the workflow put the state of the child before it."""

MAX_KEPT_BYTES = 200_000
"""Bytes of a value that the engine itself keeps, where there is a place for larger ones."""

MAX_PAYLOAD_BYTES = 1_500_000
"""Bytes of a value where there is none. The server of Temporal refuses payloads of more than 2 MB."""


class LargeValues:
    """Packs and unpacks values. `artifacts` stores the large ones, if it has a place outside of the engine."""

    def __init__(self, artifacts: Artifacts | None = None) -> None:
        self._artifacts = artifacts if artifacts is not None and artifacts.elsewhere else None

    @property
    def any_size(self) -> bool:
        """Whether there is a place for large values."""
        return self._artifacts is not None

    async def pack(self, task_id: str, data: bytes, what: str) -> str:
        """The value, or a reference to it. Raises OnwardError for one that is too large, and StoreUnavailable."""
        forged = _REFERENCE.match(data[:20].decode(errors="replace")) is not None
        if not forged and len(data) <= (MAX_PAYLOAD_BYTES if self._artifacts is None else MAX_KEPT_BYTES):
            return data.decode()
        if self._artifacts is None:
            raise OnwardError(
                f"{what} of {len(data):,} bytes is more than the {MAX_PAYLOAD_BYTES:,} that fit into one payload of Temporal; give artifacts= a "
                "folder or a bucket, and large values are stored there"
            )
        return await self.store(task_id, data)

    async def store(self, task_id: str, data: bytes) -> str:
        """A reference to a value of any size. Raises OnwardError where there is no place for it, and StoreUnavailable."""
        if self._artifacts is None:
            raise OnwardError(
                "this process has no place for large values of tasks; give it the artifacts= of the others"
            )
        name = await self._artifacts.put(task_id, data)
        return encode({KEY: [task_id, name], "bytes": len(data)}, "a reference").decode()

    async def unpack(self, data: str, *, child_end: bool = False) -> bytes:
        """The value. Only the end of a child may have something before the reference. Raises StoreUnavailable and ArtifactNotFound."""
        before = _CHILD_END.match(data) if child_end else None
        if before is None and not _REFERENCE.match(data):
            return data.encode()
        if self._artifacts is None:
            raise OnwardError(
                "a value of this task is stored as an artifact; give this process the artifacts= of its workers"
            )
        task_id, name = json.loads(data)[KEY]
        value = await self._artifacts.get(task_id, name)
        return value if before is None else before[0].encode() + value[1:]
