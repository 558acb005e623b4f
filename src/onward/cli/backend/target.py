"""Which server a command asks, and with which key. Imports little: every command runs it."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

from onward.errors import UsageError

URL, KEY, CA_FILE = "ONWARD_URL", "ONWARD_KEY", "ONWARD_CA_FILE"
MAX_KEY_BYTES = 1_000
"""Bytes of a key file that are read."""


class Target(NamedTuple):
    """A server, and how to reach it."""

    url: str
    key: str | None
    ca_file: str | None


def server_url(args: Namespace) -> str | None:
    """The address of the server that the arguments name; without --url and --db, that of ONWARD_URL. None: the command works on the
    database. Raises UsageError."""
    if args.url is not None and args.db is not None:
        raise UsageError("--url names a server and --db a database; leave one of them out")
    if args.url is not None:
        return str(args.url)
    return os.environ.get(URL) or None if args.db is None else None


def server(args: Namespace) -> Target | None:
    """The server, with its key; None for a command that works on the database. Raises UsageError."""
    url = server_url(args)
    if url is None:
        return None
    key = os.environ.get(KEY) or None if args.key_file is None else _read_key(Path(args.key_file))
    return Target(url, key, args.ca_file or os.environ.get(CA_FILE) or None)


def check_local(args: Namespace) -> None:
    """Raises UsageError for a command that cannot ask a server, where the arguments or ONWARD_URL name one."""
    if args.local and server_url(args) is not None:
        raise not_remote(command_words(args), args.local)


def not_remote(what: str, why: str) -> UsageError:
    """The error of a command, or of an option, that needs the database."""
    return UsageError(
        f"{what} cannot ask a server: {why}; run it where the database is, with --db (and without --url and ONWARD_URL)"
    )


def command_words(args: Namespace) -> str:
    """The command as the user typed it, without its arguments."""
    words = [args.command, getattr(args, "verb", None) or getattr(args, "what", None)]
    return " ".join(["`onward", *filter(None, words)]) + "`"


def _read_key(path: Path) -> str:
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_KEY_BYTES).decode("ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"the key file {str(path)!r:.200} cannot be read ({reason})") from None
    if not lines:
        raise UsageError(
            f"the key file {str(path)!r:.200} is empty; write the key that `onward keys create` prints to it"
        )
    return lines[0]
