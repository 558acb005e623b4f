"""keys: create, list, revoke; and the audit."""

from __future__ import annotations

import time
from argparse import Namespace

from rich.text import Text

from onward.cli.args import connect as door
from onward.cli.commands.people import me
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed, print_table
from onward.cli.output.text import age, local, readable, safe
from onward.core.audit import Entry
from onward.core.caller import Caller
from onward.core.views import Key
from onward.errors import NotFound
from onward.service.keys import KeyList, Keys
from onward.service.serialize import entry_json, key_json

PAGE = 1000
KEYS = (
    fixed("ID"),
    Column("NAME"),
    Column("TENANT", drop=2),
    Column("SCOPES", 11),
    Column("AGENT", drop=3),
    fixed("USED", drop=1),
    Column("UNTIL", 10),
)
AUDIT = (
    fixed("NO", drop=1),
    fixed("AT", drop=2),
    Column("WHO"),
    Column("DID", 10),
    Column("TO", 10),
    Column("MORE", 10, drop=3),
)


async def list_keys(args: Namespace) -> int:
    """`onward keys`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        found = await app.keys.list()
    if screen.json:
        screen.document({"keys": [key_json(key) for key in found]})
    elif found:
        _print(screen, found)
    else:
        screen.aside(
            "no keys, so the server answers this machine alone; `onward keys create --name ME --scope read` makes one"
        )
    return 0


def _print(screen: Screen, keys: KeyList) -> None:
    now = time.time()
    rows = [
        (
            Text(key.id),
            Text(safe(key.name)),
            Text(safe(key.tenant or "")),
            Text(" ".join(key.scopes)),
            Text(safe(key.agent or "")),
            Text("never" if key.last_used_at is None else f"{age(now - key.last_used_at)} ago", "dim"),
            Text(_standing(key), "" if key.valid else "red"),
        )
        for key in keys
    ]
    print_table(screen.out, KEYS, rows)


def _standing(key: Key) -> str:
    if key.revoked_at is not None:
        return f"revoked {local(key.revoked_at)}"
    if key.expires_at is None:
        return ""
    return local(key.expires_at) if key.valid else f"expired {local(key.expires_at)}"


async def create(args: Namespace) -> int:
    """`onward keys create`."""
    screen = Screen(args)
    async with door.app_of(args) as app:
        made = await app.keys.create(
            args.name,
            [scope for said in args.scope for scope in said],
            tenant=args.tenant,
            agent=args.agent,
            expires=args.expires,
            by=Caller(name=me()),
        )
        secret = app.service.subscriptions.secret_of(made.key.tenant)
    if screen.json:
        screen.document({**key_json(made.key), "token": made.token, "webhook_secret": secret})
    else:
        print(made.token)
        screen.aside(
            f"this is key {made.key.id}, shown once and kept nowhere; `onward keys revoke {made.key.id}` ends it"
        )
        if secret is not None:
            screen.aside(f"webhooks that this tenant gives at submit are signed with {secret}")
    return 0


async def revoke(args: Namespace) -> int:
    """`onward keys revoke`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        key = await app.keys.revoke(await _whole(app.keys, args.key), by=Caller(name=me()))
    if screen.json:
        screen.document(key_json(key))
    else:
        screen.say(f"key {key.id} ({safe(key.name)}) is revoked; within two seconds it opens nothing any more")
    return 0


async def _whole(keys: Keys, given: str) -> str:
    """The id that is meant: an id, the first characters of one, or a name that one key has."""
    found = await keys.list()
    if len(named := [key for key in found if key.name == given]) == 1:
        return named[0].id
    if named:
        raise door.Ambiguous(given, "key", [(key.id, key.name) for key in named])
    lost = NotFound(f"there is no key {given!r:.80}; `onward keys` lists them")
    return door.one_of(given, "key", [(key.id, key.name) for key in found], lost)


# ── the audit ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def audit(args: Namespace) -> int:
    """`onward audit`."""
    screen = Screen(args)
    found: list[Entry] = []
    async with door.opened(args) as app:
        while page := await app.audit(after=found[-1].number if found else args.after, limit=PAGE):
            found = (found + page)[-args.limit :]
    if screen.json:
        screen.document({"entries": [entry_json(entry) for entry in found]})
    elif found:
        rows = [
            (
                Text(str(entry.number), "dim"),
                Text(local(entry.at)),
                Text(safe(entry.name)),
                Text(safe(entry.action)),
                Text(safe(entry.subject)),
                Text(safe(readable(entry_json(entry)["data"])), "dim"),
            )
            for entry in found
        ]
        print_table(screen.out, AUDIT, rows)
    else:
        screen.aside("nothing was written down so far: what comes over HTTP and MCP is, and keys")
    return 0


async def verify(args: Namespace) -> int:
    """`onward audit verify`."""
    screen = Screen(args)
    async with door.opened(args) as app:
        verdict = await app.service.audit.verify(args.seen)
    if screen.json:
        said = {"broken": verdict.broken, "why": verdict.why or None}
        screen.document({"sound": verdict.sound, "entries": verdict.entries, "head": verdict.head, **said})
    elif verdict.sound:
        screen.say(f"{verdict.entries:,} in all, each as it was written down")
        print(verdict.head)
        screen.aside(
            "note this head elsewhere: `onward audit verify --seen HEAD` shows later whether anything up to it is gone"
        )
    else:
        screen.say((f"the audit is broken at entry {verdict.broken}: {verdict.why}", "bold red"))
    return 0 if verdict.sound else 1
