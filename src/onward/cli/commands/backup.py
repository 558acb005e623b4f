"""backup, restore and doubts: copy the database, put it back in a new epoch, list what is in doubt after that."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from onward.app import backup as backups
from onward.app.application import VERSION, Onward
from onward.app.backup import Restored
from onward.cli.args import connect
from onward.cli.args.actor import cli_caller
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed, print_table
from onward.cli.output.text import count, local, machine_readable, safe
from onward.core.doubts import InDoubt, RestoredTask
from onward.core.view_json import to_json
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
        _print_restored(screen, app, restored, lost, (await app.in_doubt(limit=MAX_LISTED)).restored)
    finally:
        await app.close()
    return 0


def _print_restored(screen: Screen, app: Onward, restored: Restored, lost: int, tasks: Sequence[RestoredTask]) -> None:
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
                "tasks": [to_json(task) for task in tasks],
            }
        )
        return
    screen.say(f"{safe(app.store.where)} is as of {local(epoch.backup_at)}; epoch {epoch.number} has begun")
    if tasks:
        screen.say(
            f"{count(lost, 'task')} had not ended. What they did since then is lost, and effects of them that must not be repeated are "
            "in doubt when a worker comes to them:"
        )
        print_table(screen.out, LOST_COLUMNS, _restored_rows(tasks[:MAX_SHOWN]))
        if lost > MAX_SHOWN:
            screen.say((f"and {lost - MAX_SHOWN:,} more: `onward doubts --limit N` lists them", "dim"))
    screen.aside("restart all workers and servers: those from before the restore cannot write any more")
    screen.aside("look at `onward keys`: keys that were revoked after the backup are valid again")


async def doubts(args: Namespace) -> int:
    """`onward doubts`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        page = found = await backend.in_doubt(min(args.limit, MAX_LISTED))
        while page.next is not None and max(len(found.doubts), len(found.restored)) < args.limit:
            page = await backend.in_doubt(MAX_LISTED, page.next)
            found = InDoubt(found.doubts + page.doubts, found.restored + page.restored, page.next)
    if screen.json:
        screen.document(to_json(found))
        return 0
    if found.doubts:
        rows = [
            [Text(doubt.task_id), Text(safe(doubt.task)), Text(safe(doubt.step)), Text(safe(doubt.reason))]
            for doubt in found.doubts
        ]
        print_table(screen.out, DOUBT_COLUMNS, rows)
        screen.aside("`onward resolve ID` explains the verdicts")
    else:
        screen.aside("no effect is in doubt")
    if found.restored:
        screen.say("Tasks from before the restore that have not ended, and may still come to an effect in doubt:")
        print_table(screen.out, LOST_COLUMNS, _restored_rows(found.restored))
    if found.next is not None:
        screen.aside("there are more: `onward doubts --limit N` lists more of them")
    return 0


def _restored_rows(tasks: Sequence[RestoredTask]) -> list[list[Text]]:
    return [[Text(task.task_id), Text(safe(task.task)), Text(task.state)] for task in tasks]


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
