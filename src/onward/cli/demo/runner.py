"""Runs a demo: a folder and a database of its own, the app, the play, then the report or the JSON document."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import tempfile
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TypeVar

from onward.app.application import Onward
from onward.cli.args.loading import load
from onward.cli.demo.proof import Proof
from onward.cli.output.screen import Screen

P = TypeVar("P", bound=Proof)


async def run_demo(
    args: Namespace,
    screen: Screen,
    target: str,
    play: Callable[[Onward, str, Path], Awaitable[P]],
    print_report: Callable[[Screen, P], None],
    *,
    keep: bool = False,
) -> int:
    """Play a demo of the app `target`. `play` gets the app, the URL of its database, and the folder. Returns the exit status."""
    with _interrupt_on_sigterm(), _folder(screen, keep=keep) as folder:
        db = args.db or f"sqlite:///{folder / 'onward.db'}"
        async with load(target, db) as app:
            proof = await play(app, db, folder)
            if screen.json:
                screen.document(proof.as_json())
            else:
                print_report(screen, proof)
                if keep and args.db is None:
                    screen.say((f"onward show {proof.task.task_id[-8:]} --db {shlex.quote(db)}", "dim"))
    return 0 if proof.holds else 1


@contextlib.contextmanager
def _folder(screen: Screen, *, keep: bool) -> Iterator[Path]:
    """A temporary folder, deleted at the end unless `keep` is set."""
    folder = Path(tempfile.mkdtemp(prefix="onward-demo-")).resolve()
    try:
        yield folder
    finally:
        if keep:
            screen.aside((f"kept: {folder} (the disk, its ledger, the database and the logs of the workers)", "dim"))
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """A SIGTERM ends the demo as Ctrl-C does, with its workers."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
