"""backup, restore and doubts: copy the database, put it back in a new epoch, list what is in doubt after that."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from rich.text import Text

from onward.app import backup as backups
from onward.app.application import VERSION, Onward
from onward.app.backup import Restored
from onward.cli.args import connect
from onward.cli.args.actor import cli_caller
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed, print_table
from onward.cli.output.text import count, local, machine_readable, safe
from onward.core.views import Doubt
from onward.errors import AuditKeyMissing, UsageError
from onward.service.messages import audit_event
from onward.store.port.backup import Progress, Tell

REPORT_EVERY_S = 2.0
"""Seconds between two lines about the progress of one part."""

MAX_SHOWN, MAX_LISTED = 20, 1_000
"""Tasks that a restore prints, and those that its JSON lists."""

LOST_COLUMNS = (fixed("ID"), Column("TASK"), Column("STATE"))
DOUBT_COLUMNS = (fixed("ID"), Column("TASK"), Column("STEP"), Column("WHY", 20))


async def backup(args: Namespace) -> int:
    """`onward backup`."""
    screen, app = Screen(args), _own_engine(connect.load_app(args))
    shelf = None if args.no_artifacts else app.service.artifacts.shelf
    began = time.monotonic()
    manifest = await backups.back_up(
        app.store.backups,
        shelf,
        Path(args.folder),
        where=app.store.where,
        version=VERSION,
        tell=_reporter(screen),
    )
    if screen.json:
        screen.document({"folder": args.folder, **manifest.to_json()})
        return 0
    tables, size = manifest.tables, sum(int(file["bytes"]) for file in manifest.files.values())
    left_out = args.no_artifacts and app.service.artifacts.elsewhere
    artifacts = (
        "; artifacts left out"
        if left_out
        else f"; {count(manifest.artifacts['count'], 'artifact')} ({manifest.artifacts['bytes'] / 1e6:,.1f} MB)"
        if manifest.artifacts is not None
        else ""
    )
    screen.say(
        f"{safe(app.store.where)} as of {local(tables.moment)} is in {safe(args.folder)}: "
        f"{count(tables.counts['tasks'], 'task')}, {tables.counts['unfinished']:,} of them unfinished "
        f"({size / 1e6:,.1f} MB, {time.monotonic() - began:.1f} s){artifacts}"
    )
    return 0


async def restore(args: Namespace) -> int:
    """`onward restore`."""
    screen, app = Screen(args), _own_engine(connect.load_app(args))
    if (args.folder is None) != args.here:
        raise UsageError(
            "say which backup to restore: onward restore FOLDER; or --here, for a database that is in place"
        )
    store, tell, lease_s = app.store.backups, _reporter(screen), app.settings.lease_s
    if args.here:
        restored = await backups.begin_epoch(store, lease_s=lease_s, tell=tell)
    else:
        restored = await backups.restore(
            store,
            app.service.artifacts.shelf,
            Path(args.folder),
            overwrite=args.overwrite,
            lease_s=lease_s,
            tell=tell,
        )
    await app.open(migrate=False)
    try:
        event = audit_event(
            cli_caller(), "restore", app.store.where, None, epoch=restored.epoch.number, folder=args.folder
        )
        try:
            await app.store.audit.append(event)
        except AuditKeyMissing as error:
            screen.aside(f"the restore is done, and the audit log has no entry of it: {error}")
        lost = await app.store.listing.lost_count()
        _print_restored(screen, app, restored, lost, await _lost_tasks(app, MAX_LISTED))
    finally:
        await app.close()
    return 0


def _print_restored(screen: Screen, app: Onward, restored: Restored, lost: int, tasks: list[dict[str, Any]]) -> None:
    epoch = restored.epoch
    assert epoch.backup_at is not None
    if screen.json:
        screen.document(
            {
                "database": app.store.where,
                "epoch": epoch.number,
                "backup_at": epoch.backup_at,
                "restored_at": epoch.restored_at,
                "own_tables": epoch.own_tables,
                "unfinished": lost,
                "tasks": tasks,
            }
        )
        return
    screen.say(f"{safe(app.store.where)} is as of {local(epoch.backup_at)}; epoch {epoch.number} has begun")
    if tasks:
        screen.say(
            f"{count(lost, 'task')} had not ended. What they did since then is lost, and effects of them that must not be repeated are "
            "in doubt when a worker comes to them:"
        )
        rows = [[Text(task["task_id"]), Text(safe(task["task"])), Text(task["state"])] for task in tasks[:MAX_SHOWN]]
        print_table(screen.out, LOST_COLUMNS, rows)
        if lost > MAX_SHOWN:
            screen.say((f"and {lost - MAX_SHOWN:,} more: `onward doubts --limit N` lists them", "dim"))
    screen.aside("restart all workers and servers: those from before the restore cannot write any more")
    screen.aside("look at `onward keys`: keys that were revoked after the backup are valid again")


async def doubts(args: Namespace) -> int:
    """`onward doubts`."""
    screen = Screen(args)
    async with connect.open_app(args) as app:
        effects: list[tuple[str, Doubt]] = []
        for task_id in await app.store.listing.doubts():
            if len(effects) >= args.limit:
                break
            task = await app.get(task_id)
            effects += [(task.task, doubt) for doubt in await app.doubts(task_id)]
        lost = await _lost_tasks(app, args.limit)
    if screen.json:
        listed = [{"task": task, **_doubt_json(doubt)} for task, doubt in effects]
        screen.document({"doubts": listed, "restored": lost})
        return 0
    if effects:
        rows = [
            [Text(doubt.task_id), Text(safe(task)), Text(safe(doubt.step)), Text(safe(doubt.reason))]
            for task, doubt in effects
        ]
        print_table(screen.out, DOUBT_COLUMNS, rows)
        screen.aside("`onward resolve ID` explains the verdicts")
    else:
        screen.aside("no effect is in doubt")
    if lost:
        screen.say("Tasks from before the restore that have not ended, and may still come to an effect in doubt:")
        print_table(
            screen.out,
            LOST_COLUMNS,
            [[Text(task["task_id"]), Text(safe(task["task"])), Text(task["state"])] for task in lost],
        )
    return 0


def _doubt_json(doubt: Doubt) -> dict[str, Any]:
    return {"task_id": doubt.task_id, "step": doubt.step, "seq": doubt.seq, "reason": doubt.reason}


async def _lost_tasks(app: Onward, limit: int) -> list[dict[str, Any]]:
    """The first unfinished tasks from before the last restore."""
    tasks: list[dict[str, Any]] = []
    while len(tasks) < limit:
        page = await app.store.listing.lost_tasks(tasks[-1]["task_id"] if tasks else "", min(1000, limit - len(tasks)))
        tasks += [
            {"task_id": task_id, "task": task, "state": "running" if worker else reason}
            for task_id, task, reason, worker in page
        ]
        if not page:
            break
    return tasks


def _own_engine(app: Onward) -> Onward:
    if app.settings.engine:
        raise UsageError(
            f"backups are of an Onward database, and this app runs on {app.store.where}; use the tools of that engine"
        )
    return app


def _reporter(screen: Screen) -> Tell:
    """Prints a line for each part that takes long, and now and then its progress, on stderr; with --json as JSON."""
    last: dict[str, float] = {"at": time.monotonic()}

    def report(progress: Progress) -> None:
        sentence = progress.total == 0 and progress.done == 0
        if not sentence and time.monotonic() - last["at"] < REPORT_EVERY_S:
            return
        last["at"] = time.monotonic()
        if screen.json:
            print(machine_readable(progress._asdict()), file=sys.stderr, flush=True)
            return
        of = f" of {progress.total / 1e6:,.0f}" if progress.total else ""
        amount = "" if sentence else f": {progress.done / 1e6:,.0f}{of} MB"
        screen.aside((f"{safe(progress.part)}{amount}", "dim"))

    return report
