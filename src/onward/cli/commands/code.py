"""check, replay, fork: compare code with journals, and start tasks from the records of others."""

from __future__ import annotations

import collections
import contextlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from onward.cli.args import connect
from onward.cli.backend.local import LocalBackend
from onward.cli.commands.submit import read_input
from onward.cli.output.screen import Screen, sign
from onward.cli.output.table import Column, fixed, number, print_table
from onward.cli.output.text import count, safe
from onward.cli.output.timeline import Mark
from onward.core import record as r
from onward.core.durations import seconds
from onward.core.journal.cuts import Again
from onward.core.task import SAME
from onward.engine.check.deploy_check import HARMED, Finding, Verdict, show_no_progress
from onward.errors import UsageError
from onward.service.forks import ForkPlan
from onward.service.serialize import task_json

DISAGREES = 1
WORDS = {
    Verdict.FINE: "fine",
    Verdict.PARKS: "would park",
    Verdict.RAISES: "would raise",
    Verdict.HANGS: "would hang",
    Verdict.UNKNOWN: "unknown here",
}
_MARKS = {
    Verdict.FINE: Mark.DONE,
    Verdict.PARKS: Mark.PERSON,
    Verdict.RAISES: Mark.FAILED,
    Verdict.HANGS: Mark.FAILED,
    Verdict.UNKNOWN: Mark.NOTE,
}


# ── check and replay ─────────────────────────────────────────────────────────────────────────────────────────────────


async def check(args: Namespace) -> int:
    """`onward check`."""
    screen, patience = Screen(args), seconds(args.patience, "--patience")
    async with connect.open_app(args) as app:
        with _progress(screen) as progress:
            findings = await app.check(progress, patience=patience)
    counts = collections.Counter(finding.verdict for finding in findings)
    if screen.json:
        screen.document(
            {
                "fine": not any(counts[verdict] for verdict in HARMED),
                "counts": {verdict.value: counts[verdict] for verdict in Verdict},
                "tasks": [_finding_json(finding) for finding in findings],
            }
        )
    else:
        _print_findings(screen, findings, counts)
    return DISAGREES if any(counts[verdict] for verdict in HARMED) else 0


async def replay(args: Namespace) -> int:
    """`onward replay`."""
    screen, patience = Screen(args), seconds(args.patience, "--patience")
    async with connect.open_app(args) as app:
        task_id = await connect.resolve_task_id(LocalBackend(app), args.id)
        with contextlib.redirect_stdout(sys.stderr):
            replayed = await app.replay(task_id, patience=patience)
    if screen.json:
        task = {"task_id": replayed.task_id, "task": replayed.task, "state": replayed.state.value}
        screen.document({**task, "agrees": replayed.agrees, "detail": replayed.detail})
    else:
        mark, style = sign(screen.out, Mark.DONE if replayed.agrees else Mark.FAILED)
        verdict = "agrees" if replayed.agrees else "does not agree"
        task_name = f"{replayed.task_id} ({safe(replayed.task)})"
        screen.say((mark, style), f" the code {verdict} with task {task_name}: {safe(replayed.detail)}")
    return 0 if replayed.agrees else DISAGREES


@contextlib.contextmanager
def _progress(screen: Screen) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal. Output that handlers print outside of their steps goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        if not screen.err.is_terminal or screen.json:
            yield show_no_progress
            return
        columns = (TextColumn("checking"), BarColumn(30), MofNCompleteColumn())
        with Progress(*columns, console=screen.err, transient=True) as bar:
            task = bar.add_task("")
            yield lambda done, of: bar.update(task, completed=done, total=of)


def _finding_json(finding: Finding) -> dict[str, str | None]:
    return {
        "task_id": finding.task_id,
        "task": finding.task,
        "state": finding.state.value,
        "reason": finding.reason,
        "verdict": finding.verdict.value,
        "detail": finding.detail,
    }


def _print_findings(screen: Screen, findings: list[Finding], counts: collections.Counter[Verdict]) -> None:
    if not findings:
        screen.aside("no unfinished tasks")
        return
    harmed = [finding for finding in findings if finding.verdict is not Verdict.FINE]
    for finding in harmed:
        mark, style = sign(screen.out, _MARKS[finding.verdict])
        screen.say(
            (mark, style), f" {finding.task_id} ", (safe(finding.task), "bold"), f" {WORDS[finding.verdict]}: ",
            safe(finding.detail),
        )  # fmt: skip
    if harmed:
        screen.say()
    names = sorted({finding.task for finding in findings})
    by_task = collections.Counter((finding.task, finding.verdict) for finding in findings)
    shown = [verdict for verdict in Verdict if counts[verdict] or verdict in {Verdict.FINE, Verdict.PARKS}]
    rows = [[Text(safe(name)), *[Text(str(by_task[name, verdict])) for verdict in shown]] for name in names]
    rows.append([Text("all", "bold"), *[Text(str(counts[verdict]), "bold") for verdict in shown]])
    print_table(screen.out, [Column("TASK"), *[number(WORDS[verdict].upper()) for verdict in shown]], rows)


# ── fork ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def fork(args: Namespace) -> int:
    """`onward fork`."""
    screen = Screen(args)
    value = SAME if args.input is None else read_input(args.input)
    async with connect.open_backend(args) as backend:
        task_id = await connect.resolve_task_id(backend, args.id)
        if args.at is None and args.input is None:
            return await _list_places(screen, backend, task_id)
        plan = await backend.fork_plan(task_id, args.at, input=value)
        if args.preview:
            return _preview(screen, plan)
        if not args.yes and plan.again and not _confirmed(screen, plan.again, plan.at):
            return UsageError.exit_status
        fork_id = await backend.fork(task_id, args.at, input=value)
        task = await backend.get(fork_id)
    if screen.json:
        forked = {"from": task_id, "at": plan.at, "again": [_again_json(again) for again in plan.again]}
        screen.document({**task_json(task), "forked": forked})
    else:
        screen.say(
            f"task {task.task_id} ", (f"({safe(task.task)}) ", "dim"), f"goes on after record {plan.at} of {task_id}"
        )
    return 0


def _preview(screen: Screen, plan: ForkPlan) -> int:
    """Print what the fork would keep and do again, without creating it."""
    if screen.json:
        keeps = {"from": plan.origin.task_id, "at": plan.at, "keeps": plan.at, "asks_again": list(plan.approvals)}
        screen.document({"forked": None, **keeps, "again": [_again_json(again) for again in plan.again]})
        return 0
    screen.say(f"a fork of task {plan.origin.task_id} would keep {count(plan.at, 'record')}, and do again:")
    if not plan.again:
        screen.say("  none of the finished steps")
    for again in plan.again:
        screen.say(_again_line(again))
    if plan.approvals:
        screen.say(f"it asks again for the approvals of {', '.join(f'record {seq}' for seq in plan.approvals)}")
    screen.aside((f"onward fork {plan.origin.task_id[-8:]} --at {plan.at} --yes: do it", "dim"))
    return 0


def _confirmed(screen: Screen, repeated: tuple[Again, ...], at: int) -> bool:
    """List the records that the fork will do again, and ask the user on a terminal; elsewhere print the option to use."""
    if screen.json:
        screen.document({"forked": None, "at": at, "again": [_again_json(again) for again in repeated]})
    else:
        screen.aside(f"after record {at} the task did this; the fork does it again, if it takes the same path:")
        for again in repeated:
            screen.aside(_again_line(again))
    if sys.stdin.isatty() and sys.stderr.isatty() and not screen.json:
        screen.err.print(Text(f"fork it? {count(len(repeated), 'thing')} will happen again [y/N] "), end="")
        return input().strip().lower() in {"y", "yes"}
    sys.stderr.write("onward: nothing was started; say --yes if you want that\n")
    return False


async def _list_places(screen: Screen, backend: connect.Backend, task_id: str) -> int:
    """List the records after which the task can be forked: --at is missing."""
    places = await backend.fork_places(task_id)
    if screen.json:
        screen.document({"forked": None, "places": [{"at": p.seq, "kind": p.kind, "key": p.key} for p in places]})
    else:
        rows = [(Text(str(p.seq)), Text(p.kind), Text(safe(p.key))) for p in places if p.kind not in _HIDDEN]
        print_table(screen.out, (number("AT"), fixed("AFTER"), Column("")), rows)
    sys.stderr.write("onward: say after which record to fork it, with --at N\n")
    return UsageError.exit_status


_HIDDEN = {r.STEP_STARTED, r.STEP_RETRY, r.STEP_WAITS, r.ARTIFACT, r.PROGRESS, r.HANDED_BACK, r.SHIFT}


def _again_json(again: Again) -> dict[str, str | int]:
    return {"seq": again.seq, "kind": again.kind, "step": again.step}


def _again_line(again: Again) -> str:
    return f"  {again.seq:>6}  {again.kind}  {safe(again.step)}"
