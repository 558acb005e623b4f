"""What every command of the command line has: our way of saying what is wrong, --db and --json, and the kinds of values."""

from __future__ import annotations

import argparse
import re
import sys
from typing import NoReturn

from onward.cli.output.text import safe


class Help(argparse.RawDescriptionHelpFormatter):
    """Epilogs stay as they are written, and the names of the commands fit beside their sentences."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=20)
        self._action_max_length = 14  # argparse forgets how far the commands are indented


class Parser(argparse.ArgumentParser):
    """argparse, with our way of saying what is wrong."""

    def error(self, message: str) -> NoReturn:
        meant = _meant(message)
        if meant is not None:
            message = f"there is no {meant[0]!r}; perhaps you meant {meant[1]!r}"
        sys.stderr.write(f"onward: {safe(message)}; see `{self.prog} --help`\n")
        sys.exit(2)


def _meant(message: str) -> tuple[str, str] | None:
    """What was typed, and the one of the choices that looks like it."""
    found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
    if found is None:
        return None
    import difflib  # noqa: PLC0415 -- only for who errs

    near = difflib.get_close_matches(found[1], re.findall(r"[\w-]+", found[2]), 1, 0.6)
    return (found[1], near[0]) if near else None


def common(parser: argparse.ArgumentParser, **defaults: object) -> None:
    """--db and --json stand before or after the command: a subparser without a default leaves what was said before."""
    parser.add_argument(
        "--db",
        metavar="URL",
        default=defaults.get("db", argparse.SUPPRESS),
        help="sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        default=defaults.get("json", argparse.SUPPRESS),
        help="answer with JSON: one document, or a line for each where things stream",
    )


class Commands:
    """Where a command adds itself; `run` names the function that does it, imported when it is asked for."""

    def __init__(self, commands: argparse._SubParsersAction[Parser]) -> None:
        self._commands = commands

    def add(self, name: str, run: str, sentence: str, more: str = "") -> Parser:
        parser = self._commands.add_parser(
            name,
            help=sentence,
            description=sentence[0].upper() + sentence[1:] + ("" if sentence.endswith("?") else "."),
            epilog=more or None,
            formatter_class=Help,
            allow_abbrev=False,
        )
        parser.set_defaults(run=f"onward.cli.{run}")
        common(parser)
        return parser

    def add_for_one(self, name: str, run: str, sentence: str, more: str = "") -> Parser:
        parser = self.add(name, run, sentence, more)
        parser.add_argument("id", metavar="ID", help="the task, by its id or the first or last characters of it")
        return parser


def of_app(parser: Parser) -> None:
    """MODULE:APP."""
    parser.add_argument("app", metavar="MODULE:APP", help="where the app is, as in `from MODULE import APP`")


def port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a whole number of 0 to 65535")
    return int(text)


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r} names no queue; write names with commas between them")
    return names


def label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value
