"""The arguments of commands that look at tasks and steer them, one or all that match. As light as parser.py."""

from __future__ import annotations

from typing import Any

from onward.cli.args.common import Commands, Parser, label, positive


def filters(parser: Parser) -> None:
    """Which tasks: what is said of different things must all hold, what is said of one thing more than once, one of it."""
    group = parser.add_argument_group(
        "which tasks", "All of these together; one given more than once takes any of its values."
    )

    def add(*flags: str, metavar: str, text: str, **more: Any) -> None:
        group.add_argument(*flags, action="append", default=[], metavar=metavar, help=text, **more)

    add("--state", metavar="STATE", text="pending, running, waiting, completed, failed or cancelled")
    add("--reason", metavar="WHY", text="why they are not going on, such as approval, asleep or parked")
    add("--name", "--task", metavar="NAME", text="tasks of this name", dest="name")
    add("--queue", metavar="NAME", text="tasks of this queue")
    add("--label", metavar="K=V", text="tasks with this label", type=label)
    group.add_argument("--parent", metavar="ID", help="children of this task")
    group.add_argument("--tenant", metavar="NAME", help="tasks of this tenant")
    group.add_argument(
        "--since", "--after", metavar="TIME", help="submitted at or after, as in 2026-11-15T14:00, or 2h for ago"
    )
    group.add_argument("--until", "--before", metavar="TIME", help="submitted before")
    group.add_argument("--text", metavar="TEXT", help="in the name, id, key, labels or the beginning of the input")


def list_(commands: Commands) -> None:
    """`onward list`."""
    parser = commands.add(
        "list",
        "commands.tasks:list_tasks",
        "tasks, newest first",
        "examples:\n  onward list --state failed --state cancelled --since 2h\n  onward list --name deploy --text eu-west",
    )
    filters(parser)
    parser.add_argument("--key", help="the task that was submitted with this key")
    parser.add_argument("--limit", type=positive, default=20, metavar="N", help="how many (20)")
    parser.add_argument("--cursor", help="go on where the page before ended")


def show(commands: Commands) -> None:
    """`onward show`."""
    parser = commands.add_for_one("show", "commands.tasks:show", "a task and its journal")
    parser.add_argument("--record", type=positive, metavar="N", help="one record whole: what went in, what came out")
    parser.add_argument("--turns", action="store_true", help="of an agent: its turns, with tokens and cost")
    parser.add_argument("--turn", type=positive, metavar="N", help="of an agent: what its model saw and said at turn N")


def state(commands: Commands) -> None:
    """`onward state`."""
    commands.add_for_one(
        "state", "commands.state:state", "what an agent knows: goal, plan, facts, questions, artifacts"
    )


def follow(commands: Commands) -> None:
    """`onward follow`."""
    commands.add_for_one(
        "follow",
        "commands.follow:follow",
        "watch a task until it has ended, or waits for a person",
        "Ctrl-C stops watching; the task goes on.",
    )


BULK = frozenset({"cancel", "pause", "resume", "prioritize", "prune"})
"""Commands that take --all instead of an id."""


def _for_all(
    commands: Commands, name: str, sentence: str, more: str = "", state: str = "pending", about: str = ""
) -> Parser:
    parser = commands.add_for_one(
        name,
        f"commands.tasks:{name}",
        sentence,
        f"examples:\n  onward {name} 7k2m{more}\n  onward {name} --all --state {state} --name deploy{more}\n\n"
        "With --all it counts first and asks; --yes does not ask." + (f"\n\n{about}" if about else ""),
    )
    parser.add_argument("--all", action="store_true", help="all tasks that match, instead of ID")
    parser.add_argument("--yes", action="store_true", help="with --all: do not ask")
    filters(parser)
    return parser


def cancel(commands: Commands) -> None:
    """`onward cancel`."""
    _for_all(commands, "cancel", "end a task, wherever it stands; or all that match")


def pause(commands: Commands) -> None:
    """`onward pause`."""
    _for_all(commands, "pause", "let a task and its children rest until `onward resume`; or all that match")


def resume(commands: Commands) -> None:
    """`onward resume`."""
    _for_all(
        commands, "resume", "go on with a failed or resting task, where it stands; or all that match", "", "failed"
    )


def prioritize(commands: Commands) -> None:
    """`onward prioritize`."""
    parser = _for_all(commands, "prioritize", "change the priority of a task, or of all that match", " 10")
    parser.add_argument("priority", metavar="N", type=int, help="a whole number; higher goes first")


def prune(commands: Commands) -> None:
    """`onward prune`."""
    _for_all(
        commands,
        "prune",
        "forget an ended task and all that it started; or all that match",
        "",
        "completed --until 30d",
        "What is gone is gone: input, result, journal, artifacts, deliveries; and its\n"
        "key, which then starts a new task. What ended less than a minute ago stays.\n"
        "--until goes by the time of the submit; workers do it by the time of the end:\n"
        "ONWARD_PRUNE_AFTER_S=30d.",
    )


def patch(commands: Commands) -> None:
    """`onward patch`."""
    parser = commands.add_for_one(
        "patch",
        "commands.state:patch",
        "change what an agent knows, while it works",
        "It takes it in at its next turn. The parts are append_facts, replace_plan,\n"
        "add_questions, answer_questions, flag_risks and unflag_risks.\n\n"
        '  onward patch 7k2m \'{"append_facts": [{"key": "region", "value": "eu"}]}\'',
    )
    parser.add_argument("change", metavar="PATCH", help="JSON, or @FILE, or - for stdin")


def budget(commands: Commands) -> None:
    """`onward budget`."""
    parser = commands.add_for_one(
        "budget",
        "commands.budget:budget",
        "what a task has spent of its budget; with a limit, raise it",
        "Limits are absolute: the same command twice changes nothing more.\n\n  onward budget 3f2a --tokens 500000 --usd 2.50",
    )
    parser.add_argument("--steps", type=positive, metavar="N", help="questions to the model, its children's too")
    parser.add_argument("--tokens", type=positive, metavar="N", help="tokens, in and out")
    parser.add_argument("--usd", type=float, metavar="DOLLARS", help="what they cost")
    parser.add_argument("--time", metavar="DURATION", help="since its first question, such as 90s, 15m or 2h")


def artifacts(commands: Commands) -> None:
    """`onward artifacts`."""
    parser = commands.add_for_one(
        "artifacts",
        "commands.artifacts:artifacts",
        "what a task left behind, or the bytes of one artifact",
        "examples:\n  onward artifacts 7k2m\n  onward artifacts 7k2m 3fa8 --out report.pdf",
    )
    parser.add_argument("artifact", metavar="ARTIFACT", nargs="?", help="its id, or the first or last characters of it")
    parser.add_argument("--out", metavar="FILE", help="save it there instead of printing it")
