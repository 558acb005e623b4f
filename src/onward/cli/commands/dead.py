"""dead: list and show messages that could not become tasks, try them again, and delete them."""

from __future__ import annotations

import base64
import sys
import time
from argparse import Namespace
from typing import NamedTuple

from rich.text import Text

from onward.cli.args import connect
from onward.cli.output.screen import Screen, facts, indented
from onward.cli.output.table import Column, fixed, number
from onward.cli.output.text import age, count, local, safe, safe_lines
from onward.core.view_json import to_json
from onward.core.views import DeadLetter, DeadLetterContent
from onward.errors import NotFound, UsageError

LETTERS = (
    fixed("ID"),
    Column("INTAKE"),
    fixed("STATE", drop=1),
    number("TRIES", drop=4),
    number("BYTES", drop=3),
    fixed("AGE", drop=2),
    Column("REASON"),
)
MAX_SEARCHED = 1000
"""Newest dead letters among which a shortened id is searched."""

MAX_BYTES = 16 << 20
"""Bytes of a body that are read: the whole body of every dead letter."""

SHOWN_CHARS = 4000
"""Characters of a body that are printed. --body prints all of it."""


async def list_letters(args: Namespace) -> int:
    """`onward dead`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        page, cursor = await backend.dead_letters(args.intake, limit=args.limit, cursor=args.cursor)
    now = time.time()
    length = 26 if screen.out.width >= connect.FULL_ID_WIDTH else 8
    rows = [
        (
            Text(letter.id[-length:]),
            Text(safe(letter.intake)),
            _state(letter),
            Text(f"{letter.attempts:,}"),
            Text(f"{letter.size:,}"),
            Text(age(now - letter.at), "dim"),
            Text(safe(letter.reason)),
        )
        for letter in page
    ]
    document = {"letters": [to_json(letter) for letter in page], "next": cursor}
    whose = f" of intake {safe(args.intake)}" if args.intake else ""
    screen.table(document, LETTERS, rows, f"no dead letters{whose}")
    if cursor is not None:
        screen.aside(f"more with --cursor {cursor}")
    return 0


def _state(letter: DeadLetter) -> Text:
    if letter.erased:
        return Text("erased", "dim")
    return Text("dead", "red") if letter.redrive_at is None else Text("redriven", "yellow")


async def show(args: Namespace) -> int:
    """`onward dead show`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        letter = await backend.dead_letter(await _resolve_id(backend, args.letter), most=MAX_BYTES)
    if args.body:
        data = (letter.body or "").encode()
        sys.stdout.buffer.write(base64.b64decode(data) if letter.encoding == "base64" else data)
        sys.stdout.buffer.flush()
        if "body" in letter.left_out:
            sys.stderr.write(
                f"onward: the body had {letter.size:,} bytes, too many to be kept whole; this is its beginning\n"
            )
    elif screen.json:
        screen.document(to_json(letter))
    else:
        _print(screen, letter)
    return 0


def _print(screen: Screen, letter: DeadLetterContent) -> None:
    redriven = None if letter.redrive_at is None else f"asked for at {local(letter.redrive_at)}; its intake tries it"
    screen.block(
        indented(
            facts(
                [
                    ("id", letter.id),
                    ("intake", letter.intake),
                    ("tenant", letter.tenant),
                    ("reason", Text(safe(letter.reason), "red") if letter.reason else None),
                    ("at", local(letter.at)),
                    ("tries", f"{letter.attempts:,}"),
                    ("redrive", redriven),
                    ("identity", letter.identity),
                    ("position", letter.position or None),
                    ("sent id", letter.sent_id or None),
                    *[(f"header {safe(name)}", value) for name, value in sorted(letter.headers.items())],
                    ("headers", "too large to be shown" if "headers" in letter.left_out else None),
                    ("bytes", f"{letter.size:,}"),
                ]
            )
        )
    )
    if letter.erased:
        screen.say(("erased: the data key of this letter was destroyed", "dim"))
    elif letter.body:
        screen.say(safe_lines(letter.body[:SHOWN_CHARS]))
        if len(letter.body) > SHOWN_CHARS or letter.encoding == "base64":
            note = "in base 64" if letter.encoding == "base64" else "the beginning"
            screen.aside((f"{note}; onward dead show {letter.id[-8:]} --body prints the bytes", "dim"))


class _Target(NamedTuple):
    """The dead letters that a command is about."""

    letters: int
    words: str
    id: str | None = None
    intake: str | None = None
    all: bool = False


async def redrive(args: Namespace) -> int:
    """`onward dead redrive`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        target = await _target(backend, args)
        changed = await backend.redrive_letters(target.id, intake=target.intake, all=target.all)
    if screen.json:
        screen.document({"letters": changed})
    elif not changed:
        screen.aside("there are no such dead letters, so nothing was done")
    else:
        tried = "it" if changed == 1 else "them"
        screen.say(
            f"{count(changed, 'dead letter')} to be tried again; the intake does {tried} within a second, if it runs"
        )
    return 0


async def drop(args: Namespace) -> int:
    """`onward dead drop`. Exit status 2 if the user does not confirm."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        target = await _target(backend, args)
        if target.id is None and target.letters and not args.yes and not _confirmed(screen, target):
            return UsageError.exit_status
        changed = await backend.drop_letters(target.id, intake=target.intake, all=target.all)
    if screen.json:
        screen.document({"letters": changed})
    elif changed:
        screen.say(f"deleted: {count(changed, 'dead letter')}")
    else:
        screen.aside("there are no such dead letters, so nothing was done")
    return 0


def _confirmed(screen: Screen, target: _Target) -> bool:
    """Ask the user on a terminal; elsewhere print the number of letters and the option to use."""
    letters = f"{count(target.letters, 'dead letter')} of {target.words}"
    if sys.stdin.isatty() and sys.stderr.isatty() and not screen.json:
        screen.err.print(Text(f"delete {letters} for good? [y/N] "), end="")
        return input().strip().lower() in {"y", "yes"}
    if screen.json:
        screen.document({"letters": 0, "matched": target.letters})
    sys.stderr.write(f"onward: {letters} would be deleted; say --yes if you want that\n")
    return False


async def _target(backend: connect.Backend, args: Namespace) -> _Target:
    if args.all == (args.letters is not None):
        raise UsageError("name an intake or the id of a dead letter, or say --all; `onward dead` lists them")
    numbers = {intake.name: intake.dead for intake in await connect.everything(backend.intakes)}
    if args.all:
        return _Target(sum(numbers.values()), "all intakes", all=True)
    if args.letters in numbers:
        return _Target(numbers[args.letters], f"intake {safe(args.letters)}", intake=args.letters)
    return _Target(1, "one message", id=await _resolve_id(backend, args.letters))


async def _resolve_id(backend: connect.Backend, given: str) -> str:
    """The whole id for an id, or for the first or last characters of one of the newest."""
    if len(given) >= connect.ID_LENGTH:
        return given
    newest, _ = await backend.dead_letters(limit=MAX_SEARCHED)
    ids = [(letter.id, f"{letter.intake}: {letter.reason:.40}") for letter in newest]
    missing = NotFound(
        f"there is no dead letter and no intake {given!r:.80}; `onward dead` and `onward intakes` list them"
    )
    return connect.match_id(given, "dead letter", ids, missing)
