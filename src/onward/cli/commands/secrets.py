"""doctor secrets: whether the value of a secret stands in the database after all."""

from __future__ import annotations

import dataclasses
from argparse import Namespace

from onward.cli.args import connect as door
from onward.cli.output.screen import Screen
from onward.cli.output.text import count, safe
from onward.errors import UsageError
from onward.service import secret_scan

WRONG = 1


async def scan(args: Namespace) -> int:
    """`onward doctor secrets`."""
    screen, app = Screen(args), door.app_of(args)
    if not app.secrets.names:
        raise UsageError(f"{args.app} names no secret, so there is nothing to look for; app.secret(NAME) names one")
    if door.missing(app.store):
        found = secret_scan.ScanResult(secrets=sorted(app.secrets.names))
    else:
        await app.open(migrate=False)
        try:
            found = await secret_scan.find(app.store, app.service.artifacts, app.secrets)
        finally:
            await app.close()
    if screen.json:
        screen.document({"fine": not found.leaks and not found.unknown} | dataclasses.asdict(found))
    else:
        _print(screen, found)
    return WRONG if found.leaks or found.unknown else 0


def _print(screen: Screen, found: secret_scan.ScanResult) -> None:
    for leak in found.leaks:
        whose = f"task {leak.task_id}: " if leak.task_id else ""
        screen.say((f"{whose}{safe(leak.where)}", "red"), f" holds {safe(leak.secret)}")
    if found.more:
        screen.say((f"and {found.more:,} more", "red"))
    for name, why in found.unknown.items():
        screen.say((f"{safe(name)} was not looked for: {safe(why)}", "yellow"))
    looked = f"{count(found.rows, 'row')} looked through for {', '.join(map(safe, found.secrets))}"
    if found.secrets:
        screen.say((looked if found.leaks else f"{looked}: none is there", "dim"))
    if found.leaks:
        screen.say("Change these secrets where they are used: whoever can read the database has read them.")
