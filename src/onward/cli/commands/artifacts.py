"""artifacts: what a task left behind, and the bytes of one."""

from __future__ import annotations

import base64
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from onward.cli.args import connect as door
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed, number, print_table
from onward.cli.output.text import safe
from onward.core.state import ArtifactRef
from onward.errors import ArtifactNotFound, UsageError

COLUMNS = (fixed("ARTIFACT"), Column("TYPE", drop=1), number("BYTES"), Column("STEP", drop=2), Column("SUMMARY"))


async def artifacts(args: Namespace) -> int:
    """`onward artifacts`."""
    screen = Screen(args)
    if args.out is not None and args.artifact is None:
        raise UsageError("say which artifact to save: `onward artifacts ID ARTIFACT --out FILE`")
    async with door.opened(args) as app:
        task_id = await door.whole_id(app.service, args.id)
        found = await app.artifacts(task_id)
        if args.artifact is None:
            return _list(screen, task_id, found)
        one = _meant(task_id, found, args.artifact)
        data = await app.artifact(task_id, one.artifact_id)
    if args.out is not None:
        return _save(screen, one, data, Path(args.out))
    return _show(screen, task_id, one, data)


def _list(screen: Screen, task_id: str, found: Sequence[ArtifactRef]) -> int:
    if screen.json:
        screen.document({"task_id": task_id, "artifacts": [one.model_dump(mode="json") for one in found]})
    elif found:
        rows = [
            (
                Text(one.artifact_id),
                Text(safe(one.type)),
                Text(f"{one.bytes:,}"),
                Text(safe(one.step or ""), "dim"),
                Text(safe(one.summary)),
            )
            for one in found
        ]
        print_table(screen.out, COLUMNS, rows)
    else:
        screen.aside(f"task {task_id} has left nothing behind so far")
    return 0


def _meant(task_id: str, found: Sequence[ArtifactRef], given: str) -> ArtifactRef:
    """The artifact with this id, or with these first or last characters of one."""
    lost = ArtifactNotFound(task_id, given, [one.artifact_id for one in found])
    meant = door.one_of(given, "artifact", [(one.artifact_id, one.summary) for one in found], lost)
    return next(one for one in found if one.artifact_id == meant)


def _save(screen: Screen, one: ArtifactRef, data: bytes, path: Path) -> int:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; name another file with --out") from None
    if screen.json:
        screen.document({**one.model_dump(mode="json"), "saved": str(path)})
    else:
        screen.aside(f"{one.bytes:,} bytes saved to {safe(path)}")
    return 0


def _show(screen: Screen, task_id: str, one: ArtifactRef, data: bytes) -> int:
    """As it is where a program reads it; on a terminal, only what a terminal cannot be moved by."""
    text = _text(data)
    if screen.json:
        said: dict[str, Any] = {"base64": base64.b64encode(data).decode()} if text is None else {"text": text}
        screen.document({"task_id": task_id, **one.model_dump(mode="json"), **said})
    elif not sys.stdout.isatty():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    elif text is None:
        raise UsageError(
            f"artifact {one.artifact_id} is no text ({one.bytes:,} bytes); save it with --out FILE, or send it into a pipe"
        )
    else:
        for line in text.splitlines():
            print(safe(line.expandtabs()))
    return 0


def _text(data: bytes) -> str | None:
    """The bytes as a text that gives the same bytes back, where they are one."""
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None
