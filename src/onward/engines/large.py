"""Values that are too large for a payload of another engine: they are stored where artifacts are, and the engine has a reference.

Inputs, the data of records and messages, and contents go through `pack` before the engine gets them, and through `unpack` after it gave them. A
reference begins with a mark that no other value has: `pack` also stores a value that begins with it.
"""

from __future__ import annotations

import json
import re
from typing import Protocol

from onward.artifacts.keeper import MAX_ARTIFACT_BYTES, Artifacts
from onward.core.wire import encode
from onward.engines import wire
from onward.errors import OnwardError

_REFERENCE = re.compile(r'\{"\$onward\.shelf"')
_CHILD_END = re.compile(r'\{"state":"[a-z]+",(?="\$onward\.shelf")')
"""The end of a child that is a reference: the workflow put the state of the child before it."""

MAX_KEPT_BYTES = 200_000
"""Bytes of a value that the engine itself keeps, where there is a place for larger ones."""

MAX_PAYLOAD_BYTES = 1_500_000
"""Bytes of a value where there is none. The servers of Temporal and Cadence refuse payloads of more than 2 MB."""


class Packer(Protocol):
    """Packs values before an engine gets them."""

    @property
    def max_bytes(self) -> int:
        """Bytes of the largest value."""
        ...

    async def pack(self, task_id: str, data: bytes, what: str) -> str:
        """The value, or a reference to it. Raises OnwardError for one that is too large, and StoreUnavailable."""
        ...

    def too_large(self, what: str, size: int) -> OnwardError:
        """The refusal of a value of so many bytes."""
        ...


class PlainValues:
    """Values of an engine that has no references: they are packed as they are."""

    max_bytes = MAX_PAYLOAD_BYTES

    def __init__(self, engine: str) -> None:
        self._engine = engine

    async def pack(self, task_id: str, data: bytes, what: str) -> str:  # noqa: ARG002 -- as in Packer
        """The value. Raises OnwardError for one that is too large."""
        if len(data) > self.max_bytes:
            raise self.too_large(what, len(data))
        return data.decode()

    def too_large(self, what: str, size: int) -> OnwardError:
        """The refusal of a value of so many bytes."""
        return OnwardError(
            f"{what} of {size:,} bytes is more than the {self.max_bytes:,} that fit into one payload of {self._engine}; leave large results as "
            "artifacts (ctx.artifact), with artifacts= a folder or a bucket"
        )


class LargeValues:
    """Packs and unpacks values of tasks on Temporal. `artifacts` stores the large ones, if it has a place outside of the engine."""

    def __init__(self, artifacts: Artifacts | None = None) -> None:
        self._artifacts = artifacts if artifacts is not None and artifacts.elsewhere else None

    @property
    def any_size(self) -> bool:
        """Whether there is a place for large values."""
        return self._artifacts is not None

    @property
    def max_bytes(self) -> int:
        """Bytes of the largest value."""
        return MAX_ARTIFACT_BYTES if self.any_size else MAX_PAYLOAD_BYTES

    async def pack(self, task_id: str, data: bytes, what: str) -> str:
        """The value, or a reference to it. Raises OnwardError for one that is too large, and StoreUnavailable."""
        forged = _REFERENCE.match(data[:20].decode(errors="replace")) is not None
        if not forged and len(data) <= (MAX_PAYLOAD_BYTES if self._artifacts is None else MAX_KEPT_BYTES):
            return data.decode()
        if self._artifacts is None and forged:
            raise OnwardError(
                f"{what} begins like a reference of Onward's own ({wire.REFERENCE}); give artifacts= a folder or a bucket, or rename its first key"
            )
        if self._artifacts is None:
            raise self.too_large(what, len(data))
        return await self.store(task_id, data)

    def too_large(self, what: str, size: int) -> OnwardError:
        """The refusal of a value of so many bytes."""
        instead = "give artifacts= a folder or a bucket, and large values are stored there"
        return OnwardError(
            f"{what} of {size:,} bytes is more than the {self.max_bytes:,} that a task on Temporal can have here; "
            + ("make it smaller" if self.any_size else instead)
        )

    async def store(self, task_id: str, data: bytes) -> str:
        """A reference to a value of any size. Raises OnwardError where there is no place for it, and StoreUnavailable."""
        if self._artifacts is None:
            raise OnwardError(
                "this process has no place for large values of tasks; give it the artifacts= of the others"
            )
        name = await self._artifacts.put(task_id, data)
        return encode({wire.REFERENCE: [task_id, name], "bytes": len(data)}, "a reference").decode()

    async def unpack(self, data: str, *, child_end: bool = False) -> bytes:
        """The value. Only the end of a child may have something before the reference. Raises StoreUnavailable and ArtifactNotFound."""
        before = _CHILD_END.match(data) if child_end else None
        if before is None and not _REFERENCE.match(data):
            return data.encode()
        if self._artifacts is None:
            raise OnwardError(
                "a value of this task is stored as an artifact; give this process the artifacts= of its workers"
            )
        task_id, name = json.loads(data)[wire.REFERENCE]
        value = await self._artifacts.get(task_id, name)
        return value if before is None else before[0].encode() + value[1:]
