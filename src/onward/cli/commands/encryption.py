"""encryption and erase: the keys of encrypted payloads."""

from __future__ import annotations

from argparse import Namespace

from rich.text import Text

from onward.cli.args import connect
from onward.cli.args.actor import cli_caller
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed
from onward.cli.output.text import count, safe
from onward.core.encryption import new_master_key
from onward.core.view_json import to_json
from onward.errors import UsageError
from onward.service.encryption import EncryptionStatus, SealedPayloads

COLUMNS = (Column("MASTER KEY"), fixed("DATA KEYS"), Column("USE"))


async def status(args: Namespace) -> int:
    """`onward encryption`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        found = await backend.encryption()
    names = dict.fromkeys([*([found.current] if found.current else []), *found.masters])
    rows = [
        (
            Text(safe(name)),
            Text(f"{found.masters.get(name, 0):,}"),
            Text("wraps new data keys" if name == found.current else "only for what it has wrapped", "dim"),
        )
        for name in names
    ]
    empty = "payloads are not encrypted; `onward encryption new-key ID` prints a key for ONWARD_ENCRYPTION_KEYS"
    code = screen.table(to_json(found) | {"masters": dict(found.masters)}, COLUMNS, rows, empty)
    if rows and not screen.json:
        _explain(screen, found)
    return code


def _explain(screen: Screen, found: EncryptionStatus) -> None:
    if not found.on:
        screen.aside(("this process has no master key: ONWARD_ENCRYPTION_KEYS is not set", "yellow"))
    if found.plain_tasks:
        screen.aside((f"{count(found.plain_tasks, 'task')} or more with plain inputs", "dim"))


async def new_key(args: Namespace) -> int:
    """`onward encryption new-key`."""
    screen = Screen(args)
    key = new_master_key(args.id)
    if screen.json:
        screen.document({"key": key})
    else:
        print(key)
    screen.aside(("keep it outside the database and its backups: without it no payload can be read", "dim"))
    return 0


async def rotate(args: Namespace) -> int:
    """`onward encryption rotate`."""
    screen = Screen(args)

    def report(total: int) -> None:
        screen.aside((f"wrapped {count(total, 'data key')} anew", "dim"))

    async with connect.load_app(args) as app:
        total = await app.service.encryption.rotate(report, data_keys=args.data_keys)
        current = app.store.data_keys.master.current
    if screen.json:
        screen.document({"wrapped": total, "master": current})
    else:
        screen.say(f"all data keys are wrapped by {safe(current)}; {count(total, 'key')} changed")
    return 0


async def seal(args: Namespace) -> int:
    """`onward encryption seal`."""
    screen = Screen(args)

    def report(sealed: SealedPayloads) -> None:
        words = f"{count(sealed.tasks, 'task')}, {count(sealed.payloads, 'payload')} encrypted; last: {sealed.last}"
        screen.aside((words, "dim"))

    async with connect.load_app(args) as app:
        sealed = await app.service.encryption.seal(report, after=args.after)
        status = await app.service.encryption.status()
    if screen.json:
        screen.document(to_json(sealed) | {"plain_tasks": status.plain_tasks})
    else:
        screen.say(f"encrypted {count(sealed.payloads, 'payload')} of {count(sealed.tasks, 'task')}")
        if status.plain_tasks:
            screen.say((f"{count(status.plain_tasks, 'task')} or more still have plain inputs: run it again", "yellow"))
    return 0


async def erase(args: Namespace) -> int:
    """`onward erase`."""
    screen = Screen(args)
    label = None
    if args.label is not None:
        name, sign, value = args.label.partition("=")
        if not sign or not name or not value:
            raise UsageError(f"--label takes NAME=VALUE, not {args.label!r:.80}")
        label = name, value
    screen.aside(("waiting until every process has noticed; this takes half a minute", "dim"))
    async with connect.load_app(args) as app:
        erasure = await app.service.encryption.erase(cli_caller(), tenant=args.tenant, label=label, force=args.force)
    if screen.json:
        screen.document(to_json(erasure))
        return 0
    screen.say(f"destroyed {count(erasure.keys, 'data key')}; what they encrypted cannot be read any more")
    if erasure.cancelled:
        screen.say(f"cancelled {count(erasure.cancelled, 'unfinished task')}")
    if erasure.schedules:
        names = ", ".join(safe(name) for name in erasure.schedules)
        screen.say((f"removed {count(len(erasure.schedules), 'schedule')}: {names}", "yellow"))
        screen.say(("code that still declares one saves it again when the next worker starts", "yellow"))
    if erasure.plain_tasks:
        plain = count(erasure.plain_tasks, "task")
        screen.say(
            (
                f"{plain} (or more) were written before encryption was on, and stay readable; prune them, or run "
                "`onward encryption seal` and erase again",
                "yellow",
            )
        )
    return 0
