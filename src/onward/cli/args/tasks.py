"""Arguments of the commands that show and control tasks, one or all that match. Imports as little as parser.py."""

from __future__ import annotations

from typing import Any

from onward.cli.args.common import Commands, Parser, label, positive


def filters(parser: Parser) -> None:
    """Add the filter options. A task must match every option; of an option given more than once, one value."""
    group = parser.add_argument_group(
        "filters", "A task must match all of them. Of an option given more than once, any value."
    )

    def add(*flags: str, metavar: str, text: str, **more: Any) -> None:
        group.add_argument(*flags, action="append", default=[], metavar=metavar, help=text, **more)

    add(
        "--state",
        metavar="STATE",
        text="tasks in this state: pending, running, waiting, completed, failed or cancelled",
    )
    add("--reason", metavar="WHY", text="tasks that wait for this reason, such as approval, asleep or parked")
    add("--name", "--task", metavar="NAME", text="tasks of this handler", dest="name")
    add("--queue", metavar="NAME", text="tasks of this queue")
    add("--label", metavar="K=V", text="tasks with this label", type=label)
    group.add_argument("--parent", metavar="ID", help="children of this task")
    group.add_argument("--tenant", metavar="NAME", help="tasks of this tenant")
    group.add_argument(
        "--since",
        "--after",
        metavar="TIME",
        help="tasks submitted at or after TIME, such as 2026-11-15T14:00, or 2h for 2 hours ago",
    )
    group.add_argument("--until", "--before", metavar="TIME", help="tasks submitted before TIME")
    group.add_argument(
        "--text",
        metavar="TEXT",
        help="tasks with this string in the name, id, key, labels or the beginning of the input; encrypted inputs are not searched",
    )


def list_(commands: Commands) -> None:
    """`onward list`."""
    parser = commands.add(
        "list",
        "commands.tasks:list_tasks",
        "list tasks, newest first",
        "examples:\n  onward list --state failed --state cancelled --since 2h\n  onward list --name deploy --text eu-west",
    )
    filters(parser)
    parser.add_argument("--key", help="the task that was submitted with this key")
    parser.add_argument("--limit", type=positive, default=20, metavar="N", help="list at most N (20)")
    parser.add_argument("--cursor", help="list the next page: the cursor that the page before printed")


def show(commands: Commands) -> None:
    """`onward show`."""
    parser = commands.add_for_task("show", "commands.tasks:show", "show a task and its journal")
    parser.add_argument("--record", type=positive, metavar="N", help="show record N in full: input and output")
    parser.add_argument("--turns", action="store_true", help="of an agent: list its turns, with tokens and cost")
    parser.add_argument(
        "--turn", type=positive, metavar="N", help="of an agent: show the messages of turn N, to and from the model"
    )


def state(commands: Commands) -> None:
    """`onward state`."""
    commands.add_for_task(
        "state", "commands.state:state", "show the state of an agent: goal, plan, facts, questions, artifacts"
    )


def follow(commands: Commands) -> None:
    """`onward follow`."""
    commands.add_for_task(
        "follow",
        "commands.follow:follow",
        "follow a task until it ends or waits for a person",
        "Ctrl-C stops following; the task continues.",
    )


BULK = frozenset({"cancel", "pause", "resume", "prioritize", "prune"})
"""Commands that take --all instead of an id."""


def _add_bulk(
    commands: Commands, name: str, sentence: str, more: str = "", state: str = "pending", about: str = ""
) -> Parser:
    parser = commands.add_for_task(
        name,
        f"commands.tasks:{name}",
        sentence,
        f"examples:\n  onward {name} 7k2m{more}\n  onward {name} --all --state {state} --name deploy{more}\n\n"
        "With --all it shows the number of tasks and asks for confirmation, unless --yes\nis given."
        + (f"\n\n{about}" if about else ""),
    )
    parser.add_argument("--all", action="store_true", help="act on all tasks that match the filters, instead of ID")
    parser.add_argument("--yes", action="store_true", help="with --all: do not ask for confirmation")
    filters(parser)
    return parser


def cancel(commands: Commands) -> None:
    """`onward cancel`."""
    _add_bulk(commands, "cancel", "cancel a task, or all that match")


def pause(commands: Commands) -> None:
    """`onward pause`."""
    _add_bulk(commands, "pause", "pause a task and its children until `onward resume`; or all that match")


def resume(commands: Commands) -> None:
    """`onward resume`."""
    _add_bulk(commands, "resume", "continue a failed or paused task where it stopped; or all that match", "", "failed")


def prioritize(commands: Commands) -> None:
    """`onward prioritize`."""
    parser = _add_bulk(commands, "prioritize", "change the priority of a task, or of all that match", " 10")
    parser.add_argument(
        "priority", metavar="N", type=int, help="the new priority, a whole number; workers take higher ones first"
    )


def prune(commands: Commands) -> None:
    """`onward prune`."""
    _add_bulk(
        commands,
        "prune",
        "delete an ended task and the tasks that it started; or all that match",
        "",
        "completed --until 30d",
        "It deletes input, result, journal, artifacts and deliveries for good, and the\n"
        "key: a submit with it starts a new task. Tasks that ended less than a minute\n"
        "ago stay. --until compares the time of the submit. Workers prune by the time of\n"
        "the end if ONWARD_PRUNE_AFTER_S is set, as in ONWARD_PRUNE_AFTER_S=30d.",
    )


def patch(commands: Commands) -> None:
    """`onward patch`."""
    parser = commands.add_for_task(
        "patch",
        "commands.state:patch",
        "change the state of an agent while it works",
        "The agent applies the patch at its next turn. The fields of a patch are\n"
        "append_facts, replace_plan, add_questions, answer_questions, flag_risks and\n"
        "unflag_risks.\n\n"
        '  onward patch 7k2m \'{"replace_plan": ["look", "act"]}\'',
    )
    parser.add_argument("change", metavar="PATCH", help="the patch: JSON, or @FILE, or - for stdin")


def budget(commands: Commands) -> None:
    """`onward budget`."""
    parser = commands.add_for_task(
        "budget",
        "commands.budget:budget",
        "show what a task has spent of its budget; with an option, set a new limit",
        "A limit is a total, not an amount to add.\n\n  onward budget 3f2a --tokens 500000 --usd 2.50",
    )
    parser.add_argument(
        "--steps", type=positive, metavar="N", help="limit of model calls, including those of its children"
    )
    parser.add_argument("--tokens", type=positive, metavar="N", help="limit of tokens, in and out")
    parser.add_argument("--usd", type=float, metavar="DOLLARS", help="limit of cost")
    parser.add_argument(
        "--time", metavar="DURATION", help="limit of time since the first model call, such as 90s, 15m or 2h"
    )


def artifacts(commands: Commands) -> None:
    """`onward artifacts`."""
    parser = commands.add_for_task(
        "artifacts",
        "commands.artifacts:artifacts",
        "list the artifacts of a task, or print the bytes of one",
        "examples:\n  onward artifacts 7k2m\n  onward artifacts 7k2m 3fa8 --out report.pdf",
    )
    parser.add_argument(
        "artifact", metavar="ARTIFACT", nargs="?", help="the id of the artifact, or its first or last characters"
    )
    parser.add_argument("--out", metavar="FILE", help="save the artifact to FILE instead of printing it")
