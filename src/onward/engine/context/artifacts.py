"""Saving an artifact: in the handler itself this is a step of its own, inside a step it is part of that step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onward.artifacts.keeper import MAX_ARTIFACT_BYTES
from onward.engine.context.host import Call
from onward.engine.shift.scope import SCOPE
from onward.errors import ArtifactTooLarge

if TYPE_CHECKING:
    from onward.core.state import ArtifactRef
    from onward.engine.context.context import Context


async def save_artifact(ctx: Context, data: bytes | str, about: dict[str, Any]) -> ArtifactRef:
    """Store the bytes and return the ref, which the record of the step names. Raises ArtifactTooLarge."""
    raw = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else bytes(data)
    if len(raw) > MAX_ARTIFACT_BYTES:
        raise ArtifactTooLarge(len(raw), MAX_ARTIFACT_BYTES)
    step_key = SCOPE.get().key

    async def keep() -> dict[str, Any]:
        return await ctx._host.save_artifact(raw, about)

    saved = await (ctx._run(Call("artifact", keep)) if step_key is None else keep())
    # Pydantic takes long to import: not inside of a transaction, where `keep` raises UsageError.
    from onward.core.state import ArtifactRef, StatePatch  # noqa: PLC0415

    ref = ArtifactRef.model_validate(saved)
    if step_key is not None:
        ctx._saved_refs = {**ctx._saved_refs, step_key: [*ctx._saved_refs.get(step_key, ()), ref]}
    elif ctx.state is not None:
        await ctx.patch(StatePatch(add_artifacts=(ref,)))
    return ref


def take_refs(ctx: Context) -> list[ArtifactRef]:
    """The artifacts of the running step, removed from the context. Call it once, at the end of the step."""
    key = SCOPE.get().key
    refs = ctx._saved_refs.get(key or "", [])
    ctx._saved_refs = {other: of_other for other, of_other in ctx._saved_refs.items() if other != key}
    return refs
