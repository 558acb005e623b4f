"""Leaving an artifact behind: in the handler's own line it is a step of its own, in a step it is part of that step."""

from __future__ import annotations

from typing import Any

from onward.artifacts.keeper import MAX_ARTIFACT_BYTES
from onward.core.state import ArtifactRef, StatePatch
from onward.engine.context.context import Context
from onward.engine.context.host import Call
from onward.engine.shift.scope import SCOPE
from onward.errors import ArtifactTooLarge


async def leave(ctx: Context, data: bytes | str, about: dict[str, Any]) -> ArtifactRef:
    """Keep it, and tell of it. Raises ArtifactTooLarge."""
    raw = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else bytes(data)
    if len(raw) > MAX_ARTIFACT_BYTES:
        raise ArtifactTooLarge(len(raw), MAX_ARTIFACT_BYTES)
    inside = SCOPE.get().key

    async def keep() -> dict[str, Any]:
        return await ctx._host.save_artifact(raw, about)

    if inside is not None:
        ref = ArtifactRef.model_validate(await keep())
        ctx._left = {**ctx._left, inside: [*ctx._left.get(inside, ()), ref]}
        return ref
    ref = ArtifactRef.model_validate(await ctx._run(Call("artifact", keep)))
    if ctx.state is not None:
        await ctx.patch(StatePatch(add_artifacts=(ref,)))
    return ref


def taken(ctx: Context) -> list[ArtifactRef]:
    """What the step that runs now has left behind; asked once, at its end."""
    key = SCOPE.get().key
    found = ctx._left.get(key or "", [])
    ctx._left = {other: refs for other, refs in ctx._left.items() if other != key}
    return found
