"""serve without an app: serves the demo agent, so that a first try needs one command.

The disk of the agent is a folder of real files beside the database. It stays there: a server that is killed and started again
continues with it.
"""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from onward.app.application import Onward
from onward.cli.args.loading import load
from onward.cli.output.screen import Screen, facts, indented
from onward.cli.output.text import safe
from onward.config import load as settings
from onward.core.task import ENDED, State
from onward.demo.agent import TASK, model_words
from onward.demo.disk import FOLDER_VARIABLE, Disk
from onward.errors import UsageError

APP = "onward.demo.agent:app"
DISK = Path("onward-demo")
NEXT = f"onward submit {TASK} '\"Free some disk space.\"' --follow"


def demo_app(args: Namespace) -> Onward:
    """The demo app, on the database that all other commands use."""
    folder = DISK.absolute()
    if folder.exists() and any(folder.iterdir()) and not _is_disk(folder):
        raise UsageError(f"{folder} is in the way: the demo keeps its disk there; move it, or serve elsewhere")
    os.environ[FOLDER_VARIABLE] = str(folder)
    app = load(APP, args.db or settings({}).db)
    app.move(args.db or settings({}).db)
    return app


def _is_disk(folder: Path) -> bool:
    try:
        Disk(folder)
    except UsageError:
        return False
    return True


async def fill(app: Onward) -> Disk:
    """Create a disk that is nearly full, unless a task still works on the existing one."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    busy = False
    for state in State:
        if state not in ENDED:
            busy |= bool((await app.list(state=state, task=TASK, limit=1))[0])
    if busy and _is_disk(folder):
        return Disk(folder)
    return _create(folder)


def _create(folder: Path) -> Disk:
    folder.mkdir(exist_ok=True)
    disk = Disk.make(folder)
    disk.ledger.path.unlink(missing_ok=True)
    disk.ledger.write(
        {"what": "killed", "waiting": False}
    )  # there is no kill here, so a deletion must not wait for one
    return disk


def introduce(screen: Screen, disk: Disk, address: str, db: str | None) -> None:
    """Print the first lines: what is served, its address, and the next commands."""
    where = "" if db is None else f" --db {db}"
    hints = {"open": address, "next": f"{NEXT}{where}", "then": f"onward approvals{where}"}
    if screen.json:
        screen.line({"event": "demo", "task": TASK, "disk": str(disk.root), **hints})
        return
    screen.say(("No app was named, so this serves the demo: ", "bold"), f"an agent, {TASK}, that frees a full disk.")
    screen.block(
        indented(
            facts(
                [
                    ("open", hints["open"]),
                    ("next", f"{hints['next']}   (in another terminal)"),
                    ("then", f"{hints['then']}   (it asks before it deletes)"),
                    ("model", model_words(os.environ)),
                    ("disk", safe(disk.root)),
                    ("yours", "onward serve MODULE:APP"),
                ]
            )
        )
    )
