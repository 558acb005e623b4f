"""migrate and doctor: whether the database, the clock, the workers and the queues are well."""

from __future__ import annotations

import sys
from argparse import Namespace

from rich.text import Text

from onward.app.application import Onward
from onward.cli.args import connect as door
from onward.cli.output.screen import Screen, indented, sign, verdicts
from onward.cli.output.text import machine_readable, safe
from onward.cli.output.timeline import Mark
from onward.core.views import Check
from onward.errors import SchemaMismatch, StoreUnavailable
from onward.store.migrate import Progress
from onward.store.shared.health import SLICE_RECORDS
from onward.store.sqlite.file import MEMORY

WRONG = 1
TOLD = 10
"""Slices of a census between two lines about it."""


async def migrate(args: Namespace) -> int:
    """`onward migrate`."""
    screen, store = Screen(args), door.app_of(args).store

    def tell(progress: Progress) -> None:
        """One line for each thing that goes on: on stderr, with --json as JSON."""
        if screen.json:
            print(machine_readable(progress._asdict()), file=sys.stderr, flush=True)
        else:
            screen.aside((safe(": ".join(filter(None, progress))), "dim"))

    try:
        await store.open(migrate=False)
        behind = False
    except SchemaMismatch:
        await store.open(migrate=True, tell=tell)
        behind = True
    try:
        version, _ = await store.version()
    finally:
        await store.close()
    if screen.json:
        screen.document({"database": store.where, "version": version, "migrated": behind})
    else:
        done = "is now up to date" if behind else "was up to date already"
        screen.say(f"{safe(store.where)} {done}: table version {version}")
    return 0


async def doctor(args: Namespace) -> int:
    """`onward doctor`."""
    screen, app = Screen(args), door.app_of(args)
    where, status = app.store.where, 0
    try:
        checks = await _examine(app, screen, deep=args.deep)
    except StoreUnavailable as error:
        checks, status = [Check("database", False, str(error))], error.exit_status
    if any(check.fine is False for check in checks):
        status = status or WRONG
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


def _print(screen: Screen, where: str, checks: list[Check]) -> None:
    marks = {True: Mark.DONE, False: Mark.FAILED, None: Mark.NOTE}
    screen.say((safe(where), "bold"))
    grid = verdicts()
    for check in checks:
        mark, style = sign(screen.out, marks[check.fine])
        loud = style if check.fine is False else ""
        grid.add_row(Text(mark, style), Text(safe(check.name), loud), Text(safe(check.detail), loud or "dim"))
    screen.block(indented(grid))


async def _examine(app: Onward, screen: Screen, *, deep: bool) -> list[Check]:
    def seen(records: int) -> None:
        """One line now and then: on stderr, with --json as JSON."""
        if records % (TOLD * SLICE_RECORDS):
            return
        if screen.json:
            print(machine_readable({"records": records}), file=sys.stderr, flush=True)
        else:
            screen.aside((f"{records:,} records looked at", "dim"))

    if door.missing(app.store):
        note = Check(
            "database", None, "the file is not there yet; the first submit, worker or `onward migrate` makes it"
        )
        app = Onward(f"sqlite://{MEMORY}")
        async with app:
            return [note, *(Check(*entry) for entry in await app.store.health.doctor() if entry[0] == "SQLite library")]
    await app.open(migrate=False)
    try:
        return await app.service.health.checks(deep=deep, seen=seen)
    finally:
        await app.close()
