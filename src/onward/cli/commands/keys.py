"""keys and audit: create, list and revoke API keys; list and verify the audit log."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path

from rich.text import Text

from onward.cli.args import connect
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed
from onward.cli.output.text import age, local, readable, safe
from onward.config import load as load_settings
from onward.core.audit import Entry
from onward.core.views import Key
from onward.errors import NotFound, UsageError
from onward.service.audit import BY_HEAD, BY_SEAL, TAMPERED, UNPROVEN
from onward.service.serialize import entry_json, key_json
from onward.sinks.audit_heads import file_outlets

PAGE_SIZE = 1000
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
    async with connect.open_backend(args) as backend:
        keys = await connect.everything(backend.keys)
    now = time.time()
    rows = [
        (
            Text(key.id),
            Text(safe(key.name)),
            Text(safe(key.tenant or "")),
            Text(" ".join(key.scopes)),
            Text(safe(key.agent or "")),
            Text("never" if key.last_used_at is None else f"{age(now - key.last_used_at)} ago", "dim"),
            Text(_validity(key), "" if key.valid else "red"),
        )
        for key in keys
    ]
    empty = "no keys, so the server accepts requests from this machine only; `onward keys create --name ME --scope read` creates one"
    return screen.table({"keys": [key_json(key) for key in keys]}, KEYS, rows, empty)


def _validity(key: Key) -> str:
    if key.revoked_at is not None:
        return f"revoked {local(key.revoked_at)}"
    if key.expires_at is None:
        return ""
    return local(key.expires_at) if key.valid else f"expired {local(key.expires_at)}"


async def create(args: Namespace) -> int:
    """`onward keys create`."""
    screen = Screen(args)
    async with connect.open_backend(args, create=True) as backend:
        created = await backend.create_key(
            args.name,
            [scope for scopes in args.scope for scope in scopes],
            tenant=args.tenant,
            agent=args.agent,
            expires=args.expires,
            owner=args.owner,
        )
    if screen.json:
        screen.document({**key_json(created.key), "token": created.token, "webhook_secret": created.webhook_secret})
    else:
        print(created.token)
        screen.aside(
            f"this is key {created.key.id}, shown only now and not stored; `onward keys revoke {created.key.id}` revokes it"
        )
        if created.webhook_secret is not None:
            screen.aside(f"webhooks that this tenant gives at submit are signed with {created.webhook_secret}")
    return 0


async def revoke(args: Namespace) -> int:
    """`onward keys revoke`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        key = await backend.revoke_key(await _resolve_id(backend, args.key))
    if screen.json:
        screen.document(key_json(key))
    else:
        screen.say(f"key {key.id} ({safe(key.name)}) is revoked; within two seconds requests with it are refused")
    return 0


async def _resolve_id(backend: connect.Backend, given: str) -> str:
    """The whole id for an id, for the first or last characters of one, or for a name that only one key has."""
    all_keys = await connect.everything(backend.keys)
    if len(named := [key for key in all_keys if key.name == given]) == 1:
        return named[0].id
    if named:
        raise connect.Ambiguous(given, "key", [(key.id, key.name) for key in named])
    not_found = NotFound(f"there is no key {given!r:.80}; `onward keys` lists them")
    return connect.match_id(given, "key", [(key.id, key.name) for key in all_keys], not_found)


# ── the audit ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def audit(args: Namespace) -> int:
    """`onward audit`."""
    screen = Screen(args)
    entries: list[Entry] = []
    async with connect.open_backend(args) as backend:
        while page := await backend.audit(entries[-1].number if entries else args.after, limit=PAGE_SIZE):
            entries = (entries + page)[-args.limit :]
    rows = [
        (
            Text(str(entry.number), "dim"),
            Text(local(entry.at)),
            Text(safe(entry.name)),
            Text(safe(entry.action)),
            Text(safe(entry.subject)),
            Text(safe(readable(entry_json(entry)["data"])), "dim"),
        )
        for entry in entries
    ]
    empty = "the audit log is empty: it has decisions, and changes to keys, quotas and tasks"
    return screen.table({"entries": [entry_json(entry) for entry in entries]}, AUDIT, rows, empty)


async def verify(args: Namespace) -> int:
    """`onward audit verify`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        heads = _heads(args.heads) or _exported_heads(load_settings({}).audit_heads)
        verdict = await backend.verify_audit(heads)
    if screen.json:
        problem = {"broken": verdict.broken, "cause": verdict.cause or None, "why": verdict.why or None}
        problem["keyed_from"] = verdict.keyed_from
        problem["end"] = verdict.end if verdict.sound else None
        screen.document({"sound": verdict.sound, "entries": verdict.entries, "head": verdict.head, **problem})
    elif verdict.sound:
        keyed = "" if verdict.keyed_from is None else f"; they are keyed from entry {verdict.keyed_from} on"
        screen.say(f"all {verdict.entries:,} entries are as they were written{keyed}")
        screen.say(_END[verdict.end])
        print(verdict.head)
        screen.aside(
            "note this head elsewhere: `onward audit verify --head HEAD` checks later that no entry up to it is missing"
        )
    elif verdict.cause == TAMPERED:
        screen.say((f"the audit log is broken at entry {verdict.broken}: {verdict.why}", "bold red"))
    else:
        screen.say((f"the audit log cannot be vouched for from entry {verdict.broken} on: {verdict.why}", "bold red"))
    return 0 if verdict.sound else 1


_END = {
    BY_HEAD: "the last entry is one of the heads that you gave: none up to it is missing",
    BY_SEAL: "the sealed end of the log fits: no entry was removed behind it, unless a whole older state of the database was put back",
    UNPROVEN: "this does not prove the end of the log: entries behind the last one, or all of them, may have been removed. "
    "Only a head that was noted elsewhere (--head) proves that",
}


def _exported_heads(setting: str) -> list[str]:
    """The heads in files of this machine to which this installation exports them."""
    paths = [path for path in file_outlets(setting) if path.exists()]
    return [head for path in paths for head in _read_heads(path)]


def _heads(given: list[str] | None) -> list[str]:
    """The heads that the arguments name: a head each, or @FILE with exported heads, one a line behind its time."""
    heads: list[str] = []
    for argument in given or []:
        heads += _read_heads(Path(argument[1:])) if argument.startswith("@") else [argument]
    return heads


def _read_heads(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the heads of the audit in {str(path)!r}: {error}") from None
    return [words[-1] for line in lines if (words := line.split())]
