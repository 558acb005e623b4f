"""The arguments of every command. Nothing heavy is imported here: `onward --help` has to answer at once."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from onward.cli import parser_place as place
from onward.cli.commands import Commands, Help, Parser, common, label, names, of_app, port, positive

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
_ASK = "its id, as listed; the part before the dot may be shortened like the id of a task"
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
        _list,
        _show,
        _state,
        _follow,
        _cancel,
        _pause,
        _resume,
        _prioritize,
        _budget,
    ):
        add(Commands(commands))
    for add in (_approvals, _approve, _deny, _questions, _answer, place.message, _signal, _resolve):
        add(Commands(commands))
    for add in (
        _artifacts,
        _schedules,
        place.deliveries,
        place.queues,
        place.workers,
        place.stats,
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
    args, rest = parser.parse_known_args(_wait_forever(list(sys.argv[1:] if argv is None else argv)))
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
        "demo:demo",
        "watch a deploy being killed in step 8 and go on; no key, no server, under 30 s",
        own,
    )
    agent = Commands(parser.add_subparsers(dest="what", metavar="WHICH", title="another demo")).add(
        "agent",
        "demo_agent:demo_agent",
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
        "worker:work",
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
        "submit:submit",
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


def _list(commands: Commands) -> None:
    parser = commands.add("list", "tasks:list_tasks", "tasks, newest first")
    parser.add_argument("--state", help="pending, running, waiting, completed, failed or cancelled")
    parser.add_argument("--task", metavar="NAME", help="only tasks of this name")
    parser.add_argument("--queue", metavar="NAME", help="only tasks of this queue")
    parser.add_argument("--reason", help="only those that are not going on for this reason, such as approval or parked")
    parser.add_argument("--parent", metavar="ID", help="only children of this task")
    parser.add_argument("--label", action="append", default=[], type=label, metavar="K=V", help="can be repeated")
    parser.add_argument("--after", metavar="TIME", help="submitted at or after, as in 2026-11-15T14:00, or 2h for ago")
    parser.add_argument("--before", metavar="TIME", help="submitted before")
    parser.add_argument("--key", help="the task that was submitted with this key")
    parser.add_argument("--limit", type=positive, default=20, metavar="N", help="how many (20)")
    parser.add_argument("--cursor", help="go on where the page before ended")


def _show(commands: Commands) -> None:
    parser = commands.add_for_one("show", "tasks:show", "a task and its journal")
    parser.add_argument("--turn", type=positive, metavar="N", help="of an agent: what its model saw and said at turn N")


def _state(commands: Commands) -> None:
    commands.add_for_one("state", "state:state", "what an agent knows: goal, plan, facts, questions, artifacts")


def _follow(commands: Commands) -> None:
    commands.add_for_one(
        "follow",
        "follow:follow",
        "watch a task until it has ended, or waits for a person",
        "Ctrl-C stops watching; the task goes on.",
    )


def _cancel(commands: Commands) -> None:
    commands.add_for_one("cancel", "tasks:cancel", "end a task, wherever it stands")


def _pause(commands: Commands) -> None:
    commands.add_for_one("pause", "tasks:pause", "let a task and its children rest until `onward resume`")


def _resume(commands: Commands) -> None:
    commands.add_for_one(
        "resume", "tasks:resume", "go on with a failed, parked, paused or quarantined task, where it stands"
    )


def _prioritize(commands: Commands) -> None:
    parser = commands.add_for_one("prioritize", "tasks:prioritize", "change the priority of a task")
    parser.add_argument("priority", metavar="N", type=int, help="a whole number; higher goes first")


def _budget(commands: Commands) -> None:
    parser = commands.add_for_one(
        "budget",
        "budget:budget",
        "what a task has spent of its budget; with a limit, raise it",
        "Limits are absolute: the same command twice changes nothing more.\n\n  onward budget 3f2a --tokens 500000 --usd 2.50",
    )
    parser.add_argument("--steps", type=positive, metavar="N", help="questions to the model, its children's too")
    parser.add_argument("--tokens", type=positive, metavar="N", help="tokens, in and out")
    parser.add_argument("--usd", type=float, metavar="DOLLARS", help="what they cost")
    parser.add_argument("--time", metavar="DURATION", help="since its first question, such as 90s, 15m or 2h")


def _check(commands: Commands) -> None:
    parser = commands.add(
        "check",
        "code:check",
        "which unfinished tasks new code would park, before it is deployed",
        "No step is run and nothing is written. Exit status 1 when a task would park.\n\n  onward check shop.tasks:app",
    )
    of_app(parser)
    _patience(parser)


def _replay(commands: Commands) -> None:
    parser = commands.add_for_one(
        "replay",
        "code:replay",
        "run a handler over the journal of a task, with no effects: does it agree?",
        "Exit status 1 when it does not.\n\n  onward replay 7k2m shop.tasks:app",
    )
    of_app(parser)
    _patience(parser)


def _fork(commands: Commands) -> None:
    parser = commands.add_for_one(
        "fork",
        "code:fork",
        "start a new task from the first records of another",
        "What was done up to there is inherited; what came after is\ndone anew, and listed first.\n\n"
        "  onward fork 7k2m --at 12\n"
        '  onward fork 7k2m --input \'{"to": "us"}\'   begins at the first record',
    )
    parser.add_argument(
        "--at", type=positive, metavar="N", help="the last record to inherit; without it, the places are listed"
    )
    parser.add_argument("--input", metavar="JSON", help="another input: JSON, or @FILE, or - for stdin")
    parser.add_argument("--app", metavar="MODULE:APP", help="check the input against this app's handlers")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _patience(parser: Parser) -> None:
    parser.add_argument(
        "--patience", metavar="TIME", default="5", help="how long the code of one handler may take (5), as in 5 or 1m"
    )


def _approvals(commands: Commands) -> None:
    commands.add("approvals", "people:approvals", "what tasks want to have approved, whole, the oldest first")


def _questions(commands: Commands) -> None:
    commands.add("questions", "people:questions", "what tasks ask, the oldest first")


def _approve(commands: Commands) -> None:
    parser = commands.add(
        "approve",
        "people:approve",
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


def _deny(commands: Commands) -> None:
    parser = commands.add(
        "deny",
        "people:deny",
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


def _answer(commands: Commands) -> None:
    parser = commands.add(
        "answer",
        "people:answer",
        "answer a question of a task",
        'examples:\n  onward answer 1k2m3n4p.7 eu-west\n  onward answer 1k2m3n4p.7 --value \'{"to": "eu"}\'',
    )
    parser.add_argument("id", metavar="QUESTION", help=_ASK)
    parser.add_argument("text", metavar="TEXT", nargs="?", help="the answer, as a text")
    parser.add_argument("--value", metavar="JSON", help="the answer as JSON instead, or @FILE, or - for stdin")


def _signal(commands: Commands) -> None:
    parser = commands.add_for_one(
        "signal",
        "people:signal",
        "send a signal to a task",
        'A signal that the task does not wait for yet is kept.\n\n  onward signal 1k2m3n4p go \'{"to": "eu"}\'',
    )
    parser.add_argument("name", metavar="NAME", help="the name that the task waits for")
    parser.add_argument("value", metavar="VALUE", nargs="?", help="JSON, or @FILE, or - for stdin; null when not given")
    parser.add_argument("--key", help="the same key is the same signal, however often it is sent")


def _resolve(commands: Commands) -> None:
    parser = commands.add_for_one(
        "resolve",
        "people:resolve",
        "say what became of an effect in doubt",
        "Without a verdict it lists the effects in doubt and what the words mean.",
    )
    parser.add_argument("verdict", metavar="VERDICT", nargs="?", help="happened, not_happened or undo")
    parser.add_argument("--result", metavar="JSON", help="what came of an effect that happened; null when not given")
    parser.add_argument("--step", metavar="NAME", help="which effect, when several are in doubt")


def _artifacts(commands: Commands) -> None:
    parser = commands.add_for_one(
        "artifacts",
        "artifacts:artifacts",
        "what a task left behind, or the bytes of one artifact",
        "examples:\n  onward artifacts 7k2m\n  onward artifacts 7k2m 3fa8 --out report.pdf",
    )
    parser.add_argument("artifact", metavar="ARTIFACT", nargs="?", help="its id, or the first or last characters of it")
    parser.add_argument("--out", metavar="FILE", help="save it there instead of printing it")


def _schedules(commands: Commands) -> None:
    parser = commands.add(
        "schedules",
        "schedules:list_schedules",
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
        verb = verbs.add(name, f"schedules:{name}", sentence)
        verb.add_argument("name", metavar="NAME", help="the schedule, by its name")


def _migrate(commands: Commands) -> None:
    commands.add("migrate", "database:migrate", "bring the tables up to date; safe while workers run")


def _doctor(commands: Commands) -> None:
    parser = commands.add("doctor", "database:doctor", "check the database, the clock, the workers and the queues")
    more = Commands(parser.add_subparsers(dest="what", metavar="WHAT", title="or look for something else"))
    of_app(more.add("secrets", "secrets:scan", "look through the whole database for values of the app's secrets"))
