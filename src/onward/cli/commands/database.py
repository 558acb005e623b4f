"""migrate, doctor and doctor secrets: update the tables; check the database, the clock, the workers and the queues; search for
values of secrets, which must not be in the database."""

from __future__ import annotations

import dataclasses
import sys
from argparse import Namespace
from collections.abc import Sequence

from rich.text import Text

from onward.app.application import Onward
from onward.cli.args import connect
from onward.cli.backend import target
from onward.cli.backend.local import LocalBackend
from onward.cli.output.screen import Screen, indented, sign, verdicts
from onward.cli.output.text import count, machine_readable, safe
from onward.cli.output.timeline import Mark
from onward.core.views import Check
from onward.errors import SchemaMismatch, StoreUnavailable, UsageError
from onward.service import secret_scan
from onward.store.migrate import Progress
from onward.store.shared.health import SLICE_RECORDS
from onward.store.sqlite.file import MEMORY

CHECK_FAILED = LEAKS_FOUND = 1
PAGES_PER_LINE = 10
"""Pages of records that a census reads between two lines about its progress."""


async def migrate(args: Namespace) -> int:
    """`onward migrate`."""
    screen, store = Screen(args), connect.load_app(args).store

    def report(progress: Progress) -> None:
        """Print one line for each migration, on stderr; with --json as JSON."""
        if screen.json:
            print(machine_readable(progress._asdict()), file=sys.stderr, flush=True)
        else:
            screen.aside((safe(": ".join(filter(None, progress))), "dim"))

    try:
        await store.open(migrate=False)
        migrated = False
    except SchemaMismatch:
        await store.open(migrate=True, tell=report)
        migrated = True
    try:
        version, _ = await store.version()
        if args.roles is not None:
            await store.migrate(report, roles=args.roles)
    finally:
        await store.close()
    if screen.json:
        screen.document({"database": store.where, "version": version, "migrated": migrated})
        return 0
    done = "is now up to date" if migrated else "was up to date already"
    screen.say(f"{safe(store.where)} {done}: table version {version}")
    if args.roles is not None:
        screen.say(
            f"roles and row-level security are set up: GRANT {args.roles}_server TO the user of your server, and so on"
        )
    return 0


async def doctor(args: Namespace) -> int:
    """`onward doctor`."""
    screen = Screen(args)
    if target.server_url(args) is not None:
        return await _doctor_of_server(screen, args)
    app = connect.load_app(args)
    if app.settings.engine:
        raise UsageError(
            f"doctor checks an Onward database, and this app runs on {app.store.where}; ask the tools of that engine"
        )
    where, status = app.store.where, 0
    try:
        checks = await _examine(app, screen, deep=args.deep)
    except StoreUnavailable as error:
        checks, status = [Check("database", False, str(error))], error.exit_status
    return _report(screen, where, checks, status)


async def _doctor_of_server(screen: Screen, args: Namespace) -> int:
    """Print what the server found. The census (--deep) reads all of the database."""
    if args.deep:
        raise target.not_remote("--deep", "it reads every task of the database, which takes long")
    async with connect.open_backend(args) as backend:
        assert not isinstance(backend, LocalBackend)
        where, checks = await backend.doctor()
    return _report(screen, where, checks, 0)


def _report(screen: Screen, where: str, checks: Sequence[Check], status: int) -> int:
    if any(check.fine is False for check in checks):
        status = status or CHECK_FAILED
    if screen.json:
        screen.document(
            {
                "database": where,
                "fine": status == 0,
                "checks": [
                    {"name": check.name, "fine": check.fine is not False, "detail": check.detail} for check in checks
                ],
            }
        )
    else:
        _print(screen, where, checks)
    return status


def _print(screen: Screen, where: str, checks: Sequence[Check]) -> None:
    marks = {True: Mark.DONE, False: Mark.FAILED, None: Mark.NOTE}
    screen.say((safe(where), "bold"))
    grid = verdicts()
    for check in checks:
        mark, style = sign(screen.out, marks[check.fine])
        emphasis = style if check.fine is False else ""
        grid.add_row(Text(mark, style), Text(safe(check.name), emphasis), Text(safe(check.detail), emphasis or "dim"))
    screen.block(indented(grid))


async def _examine(app: Onward, screen: Screen, *, deep: bool) -> list[Check]:
    def report(records: int) -> None:
        """Print a line about the progress now and then, on stderr; with --json as JSON."""
        if records % (PAGES_PER_LINE * SLICE_RECORDS):
            return
        if screen.json:
            print(machine_readable({"records": records}), file=sys.stderr, flush=True)
        else:
            screen.aside((f"{records:,} records checked", "dim"))

    if connect.file_missing(app.store):
        note = Check(
            "database", None, "the file does not exist yet; the first submit, worker or `onward migrate` creates it"
        )
        app = Onward(f"sqlite://{MEMORY}")
        async with app:
            return [note, *(Check(*entry) for entry in await app.store.health.doctor() if entry[0] == "SQLite library")]
    await app.open(migrate=False)
    try:
        return await app.service.health.checks(deep=deep, seen=report)
    finally:
        await app.close()


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def scan_secrets(args: Namespace) -> int:
    """`onward doctor secrets`."""
    screen, app = Screen(args), connect.load_app(args)
    if not app.secrets.names:
        raise UsageError(f"{args.app} has no secrets, so there is nothing to search for; app.secret(NAME) adds one")
    if connect.file_missing(app.store):
        report = secret_scan.ScanResult(secrets=sorted(app.secrets.names))
    else:
        await app.open(migrate=False)
        try:
            report = await secret_scan.find(app.store, app.service.artifacts, app.secrets)
        finally:
            await app.close()
    if screen.json:
        screen.document({"fine": not report.leaks and not report.unknown} | dataclasses.asdict(report))
    else:
        _print_leaks(screen, report)
    return LEAKS_FOUND if report.leaks or report.unknown else 0


def _print_leaks(screen: Screen, report: secret_scan.ScanResult) -> None:
    for leak in report.leaks:
        owner = f"task {leak.task_id}: " if leak.task_id else ""
        screen.say((f"{owner}{safe(leak.where)}", "red"), f" holds {safe(leak.secret)}")
    if report.more:
        screen.say((f"and {report.more:,} more", "red"))
    for name, why in report.unknown.items():
        screen.say((f"{safe(name)} was not searched for: {safe(why)}", "yellow"))
    searched = f"{count(report.rows, 'row')} searched for {', '.join(map(safe, report.secrets))}"
    if report.secrets:
        screen.say((searched if report.leaks else f"{searched}: none is there", "dim"))
    if report.sealed:
        screen.say((f"{count(report.sealed, 'payload')} encrypted, and not searched", "yellow"))
    if report.leaks:
        screen.say("Change these secrets: everyone who can read the database may have read them.")
