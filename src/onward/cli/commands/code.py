"""check, replay, fork: code and journals."""

from __future__ import annotations

import collections
import contextlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from onward.app.application import Onward
from onward.cli.args import connect as door
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
    async with door.opened(args) as app:
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
    async with door.opened(args) as app:
        task_id = await door.whole_id(app.service, args.id)
        with contextlib.redirect_stdout(sys.stderr):
            answer = await app.replay(task_id, patience=patience)
    if screen.json:
        told = {"task_id": answer.task_id, "task": answer.task, "state": answer.state.value}
        screen.document({**told, "agrees": answer.agrees, "detail": answer.detail})
    else:
        mark, style = sign(screen.out, Mark.DONE if answer.agrees else Mark.FAILED)
        says = "agrees" if answer.agrees else "does not agree"
        screen.say(
            (mark, style), f" the code {says} with task {answer.task_id} ({safe(answer.task)}): {safe(answer.detail)}"
        )
    return 0 if answer.agrees else DISAGREES


@contextlib.contextmanager
def _progress(screen: Screen) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal; and what handlers print outside of their steps goes beside the answer."""
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
    worth = [finding for finding in findings if finding.verdict is not Verdict.FINE]
    for finding in worth:
        mark, style = sign(screen.out, _MARKS[finding.verdict])
        screen.say(
            (mark, style), f" {finding.task_id} ", (safe(finding.task), "bold"), f" {WORDS[finding.verdict]}: ",
            safe(finding.detail),
        )  # fmt: skip
    if worth:
        screen.say()
    names = sorted({finding.task for finding in findings})
    per = collections.Counter((finding.task, finding.verdict) for finding in findings)
    shown = [verdict for verdict in Verdict if counts[verdict] or verdict in {Verdict.FINE, Verdict.PARKS}]
    rows = [[Text(safe(name)), *[Text(str(per[name, verdict])) for verdict in shown]] for name in names]
    rows.append([Text("all", "bold"), *[Text(str(counts[verdict]), "bold") for verdict in shown]])
    print_table(screen.out, [Column("TASK"), *[number(WORDS[verdict].upper()) for verdict in shown]], rows)


# ── fork ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def fork(args: Namespace) -> int:
    """`onward fork`."""
    screen = Screen(args)
    value = SAME if args.input is None else read_input(args.input)
    async with door.opened(args) as app:
        task_id = await door.whole_id(app.service, args.id)
        if args.at is None and args.input is None:
            return await _places(screen, app, task_id)
        plan = await app.service.forks.plan(task_id, args.at, input=value)
        if args.preview:
            return _preview(screen, plan)
        if not args.yes and plan.again and not _allowed(screen, plan.again, plan.at):
            return UsageError.exit_status
        handle = await app.fork(task_id, args.at, input=value)
        task = await app.get(handle.id)
    if screen.json:
        told = {"from": task_id, "at": plan.at, "again": [_again_json(one) for one in plan.again]}
        screen.document({**task_json(task), "forked": told})
    else:
        screen.say(
            f"task {task.task_id} ", (f"({safe(task.task)}) ", "dim"), f"goes on after record {plan.at} of {task_id}"
        )
    return 0


def _preview(screen: Screen, plan: ForkPlan) -> int:
    """What it would come to; nothing is made."""
    if screen.json:
        told = {"from": plan.origin.task_id, "at": plan.at, "keeps": plan.at, "asks_again": list(plan.approvals)}
        screen.document({"forked": None, **told, "again": [_again_json(one) for one in plan.again]})
        return 0
    screen.say(f"a fork of task {plan.origin.task_id} would keep {count(plan.at, 'record')}, and do anew:")
    if not plan.again:
        screen.say("  nothing that was done before")
    for one in plan.again:
        screen.say(f"  {one.seq:>6}  {one.kind}  {safe(one.step)}")
    if plan.approvals:
        screen.say(f"it asks again for what was approved in {', '.join(f'record {seq}' for seq in plan.approvals)}")
    screen.aside((f"onward fork {plan.origin.task_id[-8:]} --at {plan.at} --yes: do it", "dim"))
    return 0


def _allowed(screen: Screen, again: tuple[Again, ...], at: int) -> bool:
    """Show what will be done anew, and ask; where nobody can be asked, say what to do."""
    if screen.json:
        screen.document({"forked": None, "at": at, "again": [_again_json(one) for one in again]})
    else:
        screen.aside(f"after record {at} the task did this; the fork will do it anew, as far as its way leads there:")
        for one in again:
            screen.aside(f"  {one.seq:>6}  {one.kind}  {safe(one.step)}")
    if sys.stdin.isatty() and sys.stderr.isatty() and not screen.json:
        screen.err.print(Text(f"fork it? {count(len(again), 'thing')} will happen again [y/N] "), end="")
        return input().strip().lower() in {"y", "yes"}
    sys.stderr.write("onward: nothing was started; say --yes when that is what you want\n")
    return False


async def _places(screen: Screen, app: Onward, task_id: str) -> int:
    """Nobody said where: show where it can be."""
    places = await app.service.forks.places(task_id)
    if screen.json:
        screen.document({"forked": None, "places": [{"at": p.seq, "kind": p.kind, "key": p.key} for p in places]})
    else:
        rows = [(Text(str(p.seq)), Text(p.kind), Text(safe(p.key))) for p in places if p.kind not in _NOISE]
        print_table(screen.out, (number("AT"), fixed("AFTER"), Column("")), rows)
    sys.stderr.write("onward: say after which record to fork it, with --at N\n")
    return UsageError.exit_status


_NOISE = {r.STEP_STARTED, r.STEP_RETRY, r.STEP_WAITS, r.ARTIFACT, r.PROGRESS, r.HANDED_BACK, r.SHIFT}


def _again_json(one: Again) -> dict[str, str | int]:
    return {"seq": one.seq, "kind": one.kind, "step": one.step}
