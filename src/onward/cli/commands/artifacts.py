"""artifacts: list the artifacts of a task, print or save one."""

from __future__ import annotations

import base64
import functools
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from onward.cli.args import connect
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed, number
from onward.cli.output.text import safe
from onward.core.state import ArtifactRef
from onward.errors import ArtifactNotFound, UsageError

COLUMNS = (fixed("ARTIFACT"), Column("TYPE", drop=1), number("BYTES"), Column("STEP", drop=2), Column("SUMMARY"))


async def artifacts(args: Namespace) -> int:
    """`onward artifacts`."""
    screen = Screen(args)
    if args.out is not None and args.artifact is None:
        raise UsageError("say which artifact to save: `onward artifacts ID ARTIFACT --out FILE`")
    async with connect.open_backend(args) as backend:
        task_id = await connect.resolve_task_id(backend, args.id)
        refs = await connect.everything(functools.partial(backend.artifacts, task_id))
        if args.artifact is None:
            return _list(screen, task_id, refs)
        ref = _resolve(task_id, refs, args.artifact)
        data = await backend.artifact(task_id, ref.artifact_id)
    if args.out is not None:
        return _save(screen, ref, data, Path(args.out))
    return _show(screen, task_id, ref, data)


def _list(screen: Screen, task_id: str, refs: Sequence[ArtifactRef]) -> int:
    rows = [
        (
            Text(ref.artifact_id),
            Text(safe(ref.type)),
            Text(f"{ref.bytes:,}"),
            Text(safe(ref.step or ""), "dim"),
            Text(safe(ref.summary)),
        )
        for ref in refs
    ]
    document = {"task_id": task_id, "artifacts": [ref.model_dump(mode="json") for ref in refs]}
    return screen.table(document, COLUMNS, rows, f"task {task_id} has no artifacts so far")


def _resolve(task_id: str, refs: Sequence[ArtifactRef], given: str) -> ArtifactRef:
    """The artifact whose id is `given`, or starts or ends with it."""
    not_found = ArtifactNotFound(task_id, given, [ref.artifact_id for ref in refs])
    artifact_id = connect.match_id(given, "artifact", [(ref.artifact_id, ref.summary) for ref in refs], not_found)
    return next(ref for ref in refs if ref.artifact_id == artifact_id)


def _save(screen: Screen, ref: ArtifactRef, data: bytes, path: Path) -> int:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; name another file with --out") from None
    if screen.json:
        screen.document({**ref.model_dump(mode="json"), "saved": str(path)})
    else:
        screen.aside(f"{ref.bytes:,} bytes saved to {safe(path)}")
    return 0


def _show(screen: Screen, task_id: str, ref: ArtifactRef, data: bytes) -> int:
    """Write the bytes unchanged to a pipe or file; on a terminal, print text with control characters escaped."""
    text = _text(data)
    if screen.json:
        content: dict[str, Any] = {"base64": base64.b64encode(data).decode()} if text is None else {"text": text}
        screen.document({"task_id": task_id, **ref.model_dump(mode="json"), **content})
    elif not sys.stdout.isatty():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    elif text is None:
        raise UsageError(
            f"artifact {ref.artifact_id} is no text ({ref.bytes:,} bytes); save it with --out FILE, or send it into a pipe"
        )
    else:
        for line in text.splitlines():
            print(safe(line.expandtabs()))
    return 0


def _text(data: bytes) -> str | None:
    """The bytes decoded as UTF-8, or None if they are not text."""
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None
