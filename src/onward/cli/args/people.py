"""The arguments of commands with which people answer tasks. As light as parser.py."""

from __future__ import annotations

from onward.cli.args.common import Commands, Parser

_ASK = "its id, as listed; the part before the dot may be shortened like the id of a task"


def approvals(commands: Commands) -> None:
    """`onward approvals`."""
    commands.add("approvals", "commands.people:approvals", "what tasks want to have approved, whole, the oldest first")


def questions(commands: Commands) -> None:
    """`onward questions`."""
    commands.add("questions", "commands.people:questions", "what tasks ask, the oldest first")


def approve(commands: Commands) -> None:
    """`onward approve`."""
    parser = commands.add(
        "approve",
        "commands.people:approve",
        "allow what a task wants to do",
        "Without an id it shows and approves the only one that is open.\n\n"
        "examples:\n  onward approve 1k2m3n4p.7\n"
        '  onward approve 1k2m3n4p.7 --arguments \'{"path": "/old.log"}\' --app shop:app',
    )
    parser.add_argument("id", metavar="APPROVAL", nargs="?", help=_ASK)
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for the journal")
    parser.add_argument(
        "--arguments", metavar="JSON", help="call the agent's tool with these instead; JSON, or @FILE, or - for stdin"
    )
    parser.add_argument("--app", metavar="MODULE:APP", help="check the arguments against this app's tools")
    parser.add_argument(
        "--always", action="store_true", help="and this tool without an approval from now on, in this task"
    )
    _hash(parser)


def deny(commands: Commands) -> None:
    """`onward deny`."""
    parser = commands.add(
        "deny",
        "commands.people:deny",
        "refuse what a task wants to do; it gets Denied, with the reason",
        "Without an id it shows and denies the only one that is open.",
    )
    parser.add_argument("id", metavar="APPROVAL", nargs="?", help=_ASK)
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for the task and the journal")
    _hash(parser)


def _hash(parser: Parser) -> None:
    parser.add_argument(
        "--hash", metavar="HASH", help="decide only if it still has this hash, as `approvals` showed it"
    )


def answer(commands: Commands) -> None:
    """`onward answer`."""
    parser = commands.add(
        "answer",
        "commands.people:answer",
        "answer a question of a task",
        'examples:\n  onward answer 1k2m3n4p.7 eu-west\n  onward answer 1k2m3n4p.7 --value \'{"to": "eu"}\'',
    )
    parser.add_argument("id", metavar="QUESTION", help=_ASK)
    parser.add_argument("text", metavar="TEXT", nargs="?", help="the answer, as a text")
    parser.add_argument("--value", metavar="JSON", help="the answer as JSON instead, or @FILE, or - for stdin")


def signal(commands: Commands) -> None:
    """`onward signal`."""
    parser = commands.add_for_one(
        "signal",
        "commands.people:signal",
        "send a signal to a task",
        'A signal that the task does not wait for yet is kept.\n\n  onward signal 1k2m3n4p go \'{"to": "eu"}\'',
    )
    parser.add_argument("name", metavar="NAME", help="the name that the task waits for")
    parser.add_argument("value", metavar="VALUE", nargs="?", help="JSON, or @FILE, or - for stdin; null when not given")
    parser.add_argument("--key", help="the same key is the same signal, however often it is sent")


def resolve(commands: Commands) -> None:
    """`onward resolve`."""
    parser = commands.add_for_one(
        "resolve",
        "commands.people:resolve",
        "say what became of an effect in doubt",
        "Without a verdict it lists the effects in doubt and what the words mean.",
    )
    parser.add_argument("verdict", metavar="VERDICT", nargs="?", help="happened, not_happened or undo")
    parser.add_argument("--result", metavar="JSON", help="what came of an effect that happened; null when not given")
    parser.add_argument("--step", metavar="NAME", help="which effect, when several are in doubt")
