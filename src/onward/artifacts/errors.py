"""What can be wrong with an artifact: it is not there, not what it was, or too large."""

from __future__ import annotations

from collections.abc import Iterable

from onward.errors import NotFound, OnwardError, UsageError


class ArtifactNotFound(NotFound):
    """A task has no artifact of that id; another's is none of its."""

    code = "artifact_not_found"

    def __init__(self, task_id: str, artifact_id: str, known: Iterable[str] | None = None) -> None:
        self.task_id, self.artifact_id = task_id, artifact_id
        advice = f"`onward artifacts {task_id}` lists what it has, and ONWARD_ARTIFACTS must say where that is kept"
        if known is not None:
            ids = list(known)
            more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
            advice = f"it has {', '.join(ids[:5]) or 'none so far'}{more}"
        super().__init__(f"task {task_id} has no artifact {artifact_id[:80]!a}; {advice}")


class ArtifactDamaged(OnwardError):
    """What is kept under an id has another hash: somebody changed it."""

    code = "artifact_damaged"

    def __init__(self, task_id: str, artifact_id: str) -> None:
        self.task_id, self.artifact_id = task_id, artifact_id
        super().__init__(
            f"the artifact {artifact_id} of task {task_id} is not what the task left behind: its bytes were changed where they "
            "are kept; bring them back from a copy"
        )


class ArtifactTooLarge(UsageError):
    """Nothing of that size is kept."""

    code = "artifact_too_large"
    status = 413

    def __init__(self, size: int, most: int) -> None:
        self.size, self.most = size, most
        super().__init__(
            f"an artifact may have {most:,} bytes, this has {size:,} and was not kept; leave less of it behind, in parts, or "
            "store it elsewhere and keep its address"
        )
