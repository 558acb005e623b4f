"""Arguments of the commands with which people answer tasks. Imports as little as parser.py."""

from __future__ import annotations

from onward.cli.args.common import Commands, Parser, positive

_ASK_ID = "the id, as listed; the part before the dot may be shortened like a task id"


def approvals(commands: Commands) -> None:
    """`onward approvals`."""
    parser = commands.add("approvals", "commands.people:approvals", "list open approvals in full, the oldest first")
    parser.add_argument("id", metavar="APPROVAL", nargs="?", help=f"show this one in full, open or decided: {_ASK_ID}")
    _page(parser)


def questions(commands: Commands) -> None:
    """`onward questions`."""
    parser = commands.add("questions", "commands.people:questions", "list open questions, the oldest first")
    _page(parser)


def _page(parser: Parser) -> None:
    parser.add_argument("--limit", type=positive, default=1000, metavar="N", help="list at most N (1000)")
    parser.add_argument("--cursor", help="list the next page: the cursor that the page before printed")


def approve(commands: Commands) -> None:
    """`onward approve`."""
    parser = commands.add(
        "approve",
        "commands.people:approve",
        "approve the action that a task asks for",
        "Without an id it shows and approves the only open approval.\n\n"
        "examples:\n  onward approve 1k2m3n4p.7\n"
        '  onward approve 1k2m3n4p.7 --arguments \'{"path": "/old.log"}\' --app shop:app',
    )
    parser.add_argument("id", metavar="APPROVAL", nargs="?", help=_ASK_ID)
    parser.add_argument("--reason", default="", metavar="TEXT", help="the reason, for the journal")
    parser.add_argument(
        "--arguments",
        metavar="JSON",
        help="call the agent's tool with these arguments instead; JSON, or @FILE, or - for stdin",
    )
    parser.add_argument("--app", metavar="MODULE:APP", help="check the arguments against this app's tools")
    parser.add_argument("--always", action="store_true", help="ask for no more approvals of this tool in this task")
    _digest(parser)


def deny(commands: Commands) -> None:
    """`onward deny`."""
    parser = commands.add(
        "deny",
        "commands.people:deny",
        "deny the action that a task asks for; the task gets the error Denied",
        "Without an id it shows and denies the only open approval.",
    )
    parser.add_argument("id", metavar="APPROVAL", nargs="?", help=_ASK_ID)
    parser.add_argument("--reason", default="", metavar="TEXT", help="the reason, for the task and the journal")
    _digest(parser)


def _digest(parser: Parser) -> None:
    parser.add_argument(
        "--digest", metavar="DIGEST", help="decide only if the approval has this digest, as `approvals` shows it"
    )
    parser.add_argument(
        "--hash", metavar="HASH", help="decide only if the approval still has this hash, as `approvals` shows it"
    )


def answer(commands: Commands) -> None:
    """`onward answer`."""
    parser = commands.add(
        "answer",
        "commands.people:answer",
        "answer a question that a task asked",
        'examples:\n  onward answer 1k2m3n4p.7 eu-west\n  onward answer 1k2m3n4p.7 --value \'{"to": "eu"}\'',
    )
    parser.add_argument("id", metavar="QUESTION", help=_ASK_ID)
    parser.add_argument("text", metavar="TEXT", nargs="?", help="the answer, as a string")
    parser.add_argument("--value", metavar="JSON", help="the answer as JSON instead, or @FILE, or - for stdin")


def signal(commands: Commands) -> None:
    """`onward signal`."""
    parser = commands.add_for_task(
        "signal",
        "commands.people:signal",
        "send a signal to a task",
        'A signal is kept until the task waits for it.\n\n  onward signal 1k2m3n4p go \'{"to": "eu"}\'',
    )
    parser.add_argument("name", metavar="NAME", help="the name of the signal")
    parser.add_argument("value", metavar="VALUE", nargs="?", help="the value: JSON, or @FILE, or - for stdin (null)")
    parser.add_argument("--key", help="signals with the same key count once")


def resolve(commands: Commands) -> None:
    """`onward resolve`."""
    parser = commands.add_for_task(
        "resolve",
        "commands.people:resolve",
        "say whether an effect in doubt happened",
        "Without a verdict it lists the effects in doubt and explains the verdicts.",
    )
    parser.add_argument(
        "verdict", metavar="VERDICT", nargs="?", help="happened, not_happened, nothing_happened or undo"
    )
    parser.add_argument("--result", metavar="JSON", help="the result of an effect that happened (null)")
    parser.add_argument("--step", metavar="NAME", help="the step of the effect, if several are in doubt")
