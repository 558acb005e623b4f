"""doctor secrets: search the database for values of secrets, which must not be there."""

from __future__ import annotations

import dataclasses
from argparse import Namespace

from onward.cli.args import connect
from onward.cli.output.screen import Screen
from onward.cli.output.text import count, safe
from onward.errors import UsageError
from onward.service import secret_scan

LEAKS_FOUND = 1


async def scan(args: Namespace) -> int:
    """`onward doctor secrets`."""
    screen, app = Screen(args), connect.load_app(args)
    if not app.secrets.names:
        raise UsageError(f"{args.app} has no secrets, so there is nothing to search for; app.secret(NAME) adds one")
    if connect.file_missing(app.store):
        report = secret_scan.Found(secrets=sorted(app.secrets.names))
    else:
        await app.open(migrate=False)
        try:
            report = await secret_scan.find(app.store, app.service.artifacts, app.secrets)
        finally:
            await app.close()
    if screen.json:
        screen.document({"fine": not report.leaks and not report.unknown} | dataclasses.asdict(report))
    else:
        _print(screen, report)
    return LEAKS_FOUND if report.leaks or report.unknown else 0


def _print(screen: Screen, report: secret_scan.Found) -> None:
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
    if report.leaks:
        screen.say("Change these secrets: everyone who can read the database may have read them.")
