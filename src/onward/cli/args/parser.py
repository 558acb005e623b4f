"""The arguments of every command. Nothing heavy is imported here: `onward --help` has to answer at once."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from onward.cli.args import cluster as place
from onward.cli.args import people, tasks
from onward.cli.args.common import Commands, Help, Parser, common, label, names, of_app, port, positive

EPILOG = """\
exit status:
  0  done
  1  the task failed or was cancelled
  2  wrong usage
  3  timed out
  4  not found
  5  waits for a person
  6  the database cannot be reached or is full, or the queue is full

The database is --db, else ONWARD_DB, else sqlite:///onward.db. An id may be
shortened to its first or last characters. `onward COMMAND --help` tells more."""

FOREVER = "forever"
ALL = "*"
"""In the place of an id: all that match."""
_DURATION = re.compile(r"(\d+(\.\d+)?(ms|s|m|h|d|w)?)+")


def build() -> Parser:
    """The parser of `onward`."""
    parser = Parser(
        prog="onward",
        description="Tasks that go on until they are done, whatever is killed on the way.",
        epilog=EPILOG,
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    common(parser, db=None, json=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for add in (
        _demo,
        place.serve,
        place.mcp,
        _worker,
        _submit,
        tasks.list_,
        tasks.show,
        tasks.state,
        tasks.patch,
        tasks.follow,
        tasks.cancel,
        tasks.pause,
        tasks.resume,
        tasks.prioritize,
        tasks.prune,
        tasks.budget,
        tasks.artifacts,
    ):
        add(Commands(commands))
    for add in (
        people.approvals,
        people.approve,
        people.deny,
        people.questions,
        people.answer,
        place.message,
        people.signal,
        people.resolve,
    ):
        add(Commands(commands))
    for add in (
        _schedules,
        place.handlers,
        place.deliveries,
        place.queues,
        place.workers,
        place.stats,
        place.usage,
        place.top,
        place.keys,
        place.audit,
    ):
        add(Commands(commands))
    for add in (_check, _replay, _fork, _migrate, _doctor, place.completion):
        add(Commands(commands))
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, or the end of the program with a sentence about what is wrong with them."""
    parser = build()
    args, rest = parser.parse_known_args(_wait_forever(_all(list(sys.argv[1:] if argv is None else argv))))
    if args.command is None and not args.version:
        parser.print_help(sys.stderr)
        sys.exit(2)
    if rest and not _take_last(args, rest):
        parser.prog = f"onward {args.command or ''}".strip()
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


LAST = {
    "submit": "input",
    "artifacts": "artifact",
    "approve": "id",
    "deny": "id",
    "answer": "text",
    "signal": "value",
    "resolve": "verdict",
}
"""Commands whose last word may be left out, and what it is."""


def _take_last(args: argparse.Namespace, rest: list[str]) -> bool:
    """The last word may stand after an option: argparse before 3.12 does not find it there, as in
    `submit greet --key k '"you"'`."""
    last = LAST.get(args.command or "")
    if last is None or getattr(args, last) is not None or len(rest) > 1 or rest[0].startswith("--"):
        return False
    setattr(args, last, rest[0])
    return True


def _all(words: list[str]) -> list[str]:
    """With --all there is no id; argparse cannot say that of what stands before a number, as in `prioritize --all 5`."""
    if "--all" not in words:
        return words
    where = next((place for place, word in enumerate(words) if word in tasks.BULK), None)
    return words if where is None else [*words[: where + 1], ALL, *words[where + 1 :]]


def _wait_forever(words: list[str]) -> list[str]:
    """`--wait` takes seconds or nothing. argparse would take whatever comes next, as in `submit --wait greet '"you"'`."""
    following = [*words[1:], ""]
    return [
        f"--wait={FOREVER}" if word == "--wait" and not _DURATION.fullmatch(next_word) else word
        for word, next_word in zip(words, following, strict=False)
    ]


def _demo(commands: Commands) -> None:
    own = "It works on a temporary SQLite file unless --db names a database."
    parser = commands.add(
        "demo",
        "demo.deploy:demo",
        "watch a deploy being killed in step 8 and go on; no key, no server, under 30 s",
        own,
    )
    agent = Commands(parser.add_subparsers(dest="what", metavar="WHICH", title="another demo")).add(
        "agent",
        "demo.agent:demo_agent",
        'an agent told "I\'m out of disk space. Fix it.", killed twice on the way',
        "The disk is a temporary folder of real files, gone afterwards. With\n"
        "OPENAI_API_KEY or OPENAI_BASE_URL it uses that model (ONWARD_MODEL names it),\n"
        f"otherwise a scripted one.\n{own}",
    )
    agent.add_argument("--yes", action="store_true", help="approve what it wants to delete without asking")
    agent.add_argument("--keep", action="store_true", help="keep the folder, and say where it is")
    agent.add_argument(
        "--patience", metavar="TIME", default="2m", help="how long to wait for a yes from another terminal (2m)"
    )


def _worker(commands: Commands) -> None:
    parser = commands.add(
        "worker",
        "commands.worker:work",
        "do tasks, with the handlers of an app",
        "SIGTERM or Ctrl-C hands running tasks back, a second one exits at once.\n\n  onward worker shop.tasks:app --slots 20",
    )
    of_app(parser)
    parser.add_argument("--slots", type=positive, metavar="N", help="how many tasks at once (ONWARD_SLOTS, or 100)")
    parser.add_argument("--queues", type=names, default=(), metavar="A,B", help="only these queues; all when not given")
    parser.add_argument(
        "--metrics-port", type=port, metavar="N", help="answer /metrics there (ONWARD_METRICS_PORT; none)"
    )


def _submit(commands: Commands) -> None:
    parser = commands.add(
        "submit",
        "commands.submit:submit",
        "ask for a task; prints its id",
        "examples:\n"
        "  onward submit greet '\"world\"'                a text needs quotes of its own\n"
        '  onward submit deploy \'{"to": "eu"}\' --wait   waits and prints the result\n'
        "  onward submit deploy @order.json --follow    shows what happens\n"
        "  make-list | onward submit load - --key 4711  the same key is the same task",
    )
    parser.add_argument("name", metavar="NAME", help="the name of a handler")
    parser.add_argument("input", metavar="INPUT", nargs="?", help="JSON, or @FILE, or - for stdin; null when not given")
    parser.add_argument("--app", metavar="MODULE:APP", help="check the input against this app's handlers")
    parser.add_argument("--key", help="the same key with the same input gives the same task")
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="higher goes first")
    parser.add_argument("--queue", metavar="NAME", help="the queue to wait in")
    parser.add_argument("--group", metavar="NAME", help="whose it is: groups get their turns, and have their limits")
    parser.add_argument("--delay", metavar="TIME", help="do not start before, as in 90, 10m or 1h30m")
    parser.add_argument("--deadline", metavar="TIME", help="fail when it has not ended so long after its first start")
    parser.add_argument(
        "--budget", metavar="JSON", help='what it may spend, as in {"max_steps": 20, "max_cost_usd": 1.5}'
    )
    parser.add_argument("--after", metavar="ID", help="of an agent: go on where this task, which has ended, was")
    parser.add_argument("--label", action="append", default=[], type=label, metavar="K=V", help="can be repeated")
    parser.add_argument("--webhook", metavar="URL", help="gets a signed POST when the task ends")
    parser.add_argument("--wait", metavar="TIME", nargs="?", help="wait for the result, for so long or for ever")
    parser.add_argument("--follow", action="store_true", help="show what happens until it has ended")
    parser.add_argument("--anyway", action="store_true", help="submit although no worker ever offered this name")


def _check(commands: Commands) -> None:
    parser = commands.add(
        "check",
        "commands.code:check",
        "which unfinished tasks new code would park, before it is deployed",
        "No step is run and nothing is written. Exit status 1 when a task would park.\n\n  onward check shop.tasks:app",
    )
    of_app(parser)
    _patience(parser)


def _replay(commands: Commands) -> None:
    parser = commands.add_for_one(
        "replay",
        "commands.code:replay",
        "run a handler over the journal of a task, with no effects: does it agree?",
        "Exit status 1 when it does not.\n\n  onward replay 7k2m shop.tasks:app",
    )
    of_app(parser)
    _patience(parser)


def _fork(commands: Commands) -> None:
    parser = commands.add_for_one(
        "fork",
        "commands.code:fork",
        "start a new task from the first records of another",
        "What was done up to there is inherited; what came after is\ndone anew, and listed first.\n\n"
        "  onward fork 7k2m --at 12 --preview\n  onward fork 7k2m --at 12\n"
        '  onward fork 7k2m --input \'{"to": "us"}\'   begins at the first record',
    )
    parser.add_argument(
        "--at", type=positive, metavar="N", help="the last record to inherit; without it, the places are listed"
    )
    parser.add_argument("--input", metavar="JSON", help="another input: JSON, or @FILE, or - for stdin")
    parser.add_argument("--preview", action="store_true", help="only tell what it would inherit and do anew")
    parser.add_argument("--app", metavar="MODULE:APP", help="check the input against this app's handlers")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _patience(parser: Parser) -> None:
    parser.add_argument(
        "--patience", metavar="TIME", default="5", help="how long the code of one handler may take (5), as in 5 or 1m"
    )


def _schedules(commands: Commands) -> None:
    parser = commands.add(
        "schedules",
        "commands.schedules:list_schedules",
        "what submits tasks by the clock, and its next tick",
        "examples:\n"
        "  onward schedules\n"
        "  onward schedules pause nightly\n"
        "  onward schedules trigger nightly   submits its task now; prints the id",
    )
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    for name, sentence in (
        ("pause", "no tick until it is unpaused"),
        ("unpause", "go on with the next tick"),
        ("remove", "remove it; its tasks stay"),
        ("trigger", "submit its task now; prints the id"),
    ):
        verb = verbs.add(name, f"commands.schedules:{name}", sentence)
        verb.add_argument("name", metavar="NAME", help="the schedule, by its name")


def _migrate(commands: Commands) -> None:
    commands.add("migrate", "commands.database:migrate", "bring the tables up to date; safe while workers run")


def _doctor(commands: Commands) -> None:
    parser = commands.add(
        "doctor", "commands.database:doctor", "check the database, the clock, the workers and the queues"
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="look at every task there ever was, and every page of a file; takes its time",
    )
    more = Commands(parser.add_subparsers(dest="what", metavar="WHAT", title="or look for something else"))
    of_app(
        more.add("secrets", "commands.secrets:scan", "look through the whole database for values of the app's secrets")
    )
