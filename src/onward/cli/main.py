"""`onward`: parses the arguments, runs one command, and turns its errors into a sentence and an exit status."""

from __future__ import annotations

import io
import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from onward.cli.args import parser
from onward.cli.output.text import machine_readable, safe
from onward.errors import OnwardError

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells use it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    _escape_unencodable()
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["__complete"]:
        from onward.cli.args import completing  # noqa: PLC0415 -- only completion needs it

        return completing.main(words[1:])
    args = parser.parse(words)
    try:
        status = _version(args) if args.version else _run(args)
        sys.stdout.flush()
    except OnwardError as error:
        return _print_error(error, args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _run(args: Namespace) -> int:
    # The command is imported here, with all that it needs, so that --help stays fast.
    import importlib  # noqa: PLC0415

    from onward.cli.backend.target import check_local  # noqa: PLC0415

    check_local(args)
    module, _, name = args.run.partition(":")
    status = getattr(importlib.import_module(module), name)(args)
    if isinstance(status, int):
        return status
    import asyncio  # noqa: PLC0415 -- help and completion do not need it

    return int(asyncio.run(status))


def _version(args: Namespace) -> int:
    from onward.app.application import VERSION  # noqa: PLC0415 -- as above

    print(machine_readable({"version": VERSION}) if args.json else f"onward {VERSION}")
    return 0


def _print_error(error: OnwardError, args: Namespace) -> int:
    if args.json:
        from onward.service.serialize import error_json  # noqa: PLC0415 -- as above

        print(machine_readable(error_json(error)), flush=True)
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    before, after = ("\x1b[31m", "\x1b[0m") if coloured else ("", "")
    sys.stderr.write(f"{before}onward: {safe(error)}{after}\n")
    return error.exit_status


def _escape_unencodable() -> None:
    """Print a character that the terminal cannot encode as an escape, instead of failing with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
