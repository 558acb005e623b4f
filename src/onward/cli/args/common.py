"""The parts that all commands share: error messages of the parser, --db, --url and --json, and the types of values."""

from __future__ import annotations

import argparse
import re
import sys
from typing import NoReturn

from onward.cli.output.text import safe


class Help(argparse.RawDescriptionHelpFormatter):
    """Prints epilogs unchanged, and command names beside their descriptions."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=20)
        self._action_max_length = 14  # argparse does not count the indentation of the commands


class Parser(argparse.ArgumentParser):
    """argparse with our error messages: one sentence, a suggestion for a typing error, and a hint to --help."""

    def error(self, message: str) -> NoReturn:
        self.refuse(message, self.prog)

    def refuse(self, message: str, command: str) -> NoReturn:
        """Print the message with a hint to the help of this command, and exit with status 2."""
        if (suggestion := _suggestion(message)) is not None:
            typed, choice = suggestion
            message = f"there is no {typed!r}" + (f"; perhaps you meant {choice!r}" if choice else "")
        sys.stderr.write(f"onward: {safe(message)}; see `{command} --help`\n")
        sys.exit(2)


MAX_CHOICES = 8
"""A message lists at most so many choices."""


def _suggestion(message: str) -> tuple[str, str | None] | None:
    """The word that argparse refused, and the choice that looks most like it; None where the message of argparse is good enough."""
    match = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
    if match is None:
        return None
    import difflib  # noqa: PLC0415 -- only needed after a typing error

    choices = re.findall(r"[\w-]+", match[2])
    near = difflib.get_close_matches(match[1], choices, 1, 0.6)
    return (match[1], near[0] if near else None) if near or len(choices) > MAX_CHOICES else None


def common(parser: argparse.ArgumentParser, **defaults: object) -> None:
    """Add --db, --url and --json. They may stand before or after the command: a subparser without a default keeps a value given
    before."""
    for name, metavar, text in (
        ("--db", "URL", "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"),
        (
            "--url",
            "URL",
            "ask this server instead, as in https://onward.example.com (ONWARD_URL); its key is ONWARD_KEY",
        ),
        ("--key-file", "FILE", "with --url: read the key from the first line of FILE, instead of ONWARD_KEY"),
        ("--ca-file", "FILE", "with --url: trust the authorities in this PEM file (ONWARD_CA_FILE)"),
    ):
        dest = name.removeprefix("--").replace("-", "_")
        parser.add_argument(name, metavar=metavar, default=defaults.get(dest, argparse.SUPPRESS), help=text)
    parser.add_argument(
        "--json",
        action="store_true",
        default=defaults.get("json", argparse.SUPPRESS),
        help="print JSON: one document, or one line per item for commands that stream",
    )


class Commands:
    """Adds commands to a parser. `run` names the function of a command; it is imported only when the command runs. `local` says why a
    command cannot ask a server (--url), as the end of a sentence; empty for a command that can."""

    def __init__(self, commands: argparse._SubParsersAction[Parser]) -> None:
        self._commands = commands

    def add(self, name: str, run: str, sentence: str, more: str = "", *, local: str = "") -> Parser:
        parser = self._commands.add_parser(
            name,
            help=sentence,
            description=sentence[0].upper() + sentence[1:] + ("" if sentence.endswith("?") else "."),
            epilog=more or None,
            formatter_class=Help,
            allow_abbrev=False,
        )
        parser.set_defaults(run=f"onward.cli.{run}", local=local)
        common(parser)
        return parser

    def add_for_task(self, name: str, run: str, sentence: str, more: str = "", *, local: str = "") -> Parser:
        parser = self.add(name, run, sentence, more, local=local)
        parser.add_argument("id", metavar="ID", help="the id of the task, or its first or last characters")
        return parser


def of_app(parser: Parser) -> None:
    """Add the argument MODULE:APP."""
    parser.add_argument("app", metavar="MODULE:APP", help="the app to load, as in `from MODULE import APP`")


def port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a whole number of 0 to 65535")
    return int(text)


MAX_NUMBER = 2**53
"""As in JSON: larger whole numbers are not exact everywhere, and databases do not take them."""


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    if int(text) > MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is too large: at most {MAX_NUMBER}")
    return int(text)


def processes(text: str) -> int | str:
    if text != "auto" and (not text.isascii() or not text.isdigit() or int(text) < 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more, nor auto")
    return text if text == "auto" else int(text)


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
