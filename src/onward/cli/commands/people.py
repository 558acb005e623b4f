"""approvals, approve, deny, questions, answer, signal, message, resolve: what people send to tasks."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from rich.text import Text

from onward.cli.args import connect
from onward.cli.commands.submit import read_input
from onward.cli.output.screen import Screen, facts, indented
from onward.cli.output.table import Column, fixed, print_table
from onward.cli.output.text import age, count, readable, safe, short, span
from onward.core.approval import ApprovalRule, Vote, approving
from onward.core.asks import AskedIn
from onward.core.doubts import Doubt
from onward.core.journal.open_waits import plain_key, question
from onward.core.task import Task
from onward.core.views import Ask, Decided
from onward.errors import StateConflict, UsageError
from onward.service.messages import VERDICTS
from onward.service.serialize import ask_json, iso, task_json

MEANINGS = {
    "happened": "it was done; the task goes on with --result as its result",
    "not_happened": "it was not done; the task does it again",
    "nothing_happened": "neither it nor any effect after it was done before the restore; the task does them",
    "undo": "unknown; its undo is called, and the step fails",
}

EFFECTS = {
    "read": "it only reads",
    "idempotent": "repeated after a crash, it changes nothing more",
    "once": "it must not happen twice; after a crash a person is asked",
}
"""What the effect of a tool means, for the person who decides."""

QUESTIONS = (fixed("ID"), Column("TASK", drop=2), fixed("AGE", drop=1), fixed("LEFT", drop=3), Column("QUESTION", 20))


# ── open questions and approvals ─────────────────────────────────────────────────────────────────────────────────────


async def approvals(args: Namespace) -> int:
    """`onward approvals`: shows each approval in full, so that no one approves a shortened one. Where the page has no room for all of a
    large approval, it says so, and shows no digest."""
    if args.id is not None:
        return await _show_one(args)
    return await _list(args, "approval", "onward approve ID · onward deny ID --reason TEXT", _show_all)


async def questions(args: Namespace) -> int:
    """`onward questions`."""
    return await _list(args, "question", "onward answer ID TEXT", _print_asks)


async def _list(args: Namespace, kind: str, hint: str, show: Callable[[Screen, list[Ask]], None]) -> int:
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        asks = await backend.asks(kind, limit=args.limit, cursor=args.cursor)
    if screen.json:
        screen.document({f"{kind}s": [ask_json(ask) for ask in asks], "next": asks.next})
    elif asks:
        show(screen, asks)
        screen.aside((hint, "dim"))
    else:
        screen.aside(f"no {kind}s are open" if args.cursor is None else f"no more {kind}s are open")
    if asks.next is not None:
        screen.aside((f"more: onward {kind}s --cursor {asks.next}", "dim"))
    return 0


async def _show_one(args: Namespace) -> int:
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        ask = await connect.resolve_ask(backend, args.id, "approval", "onward approvals")
        if ask.kind != "approval":
            raise UsageError(f"{ask.id} is a question; `onward questions` lists the open ones")
        asked = await backend.asked_in(ask.id)
    if screen.json:
        screen.document(ask_json(ask) | {"turn": asked.turn, "reason": asked.reason})
    else:
        _show(screen, ask, asked)
    return 0


def _show_all(screen: Screen, asks: list[Ask]) -> None:
    for ask in asks:
        _show(screen, ask)
        screen.say()


def _print_asks(screen: Screen, asks: list[Ask]) -> None:
    now = time.time()
    whole = screen.out.width >= connect.FULL_ID_WIDTH
    rows = [
        (
            Text(ask.id if whole else connect.short_ask_id(ask.id)),
            Text(safe(ask.task)),
            Text(age(now - ask.asked_at), "dim"),
            Text("" if ask.expires_at is None else span(ask.expires_at - now), "dim"),
            Text(safe(question(ask.text, ask.choices))),
        )
        for ask in asks
    ]
    print_table(screen.out, QUESTIONS, rows)


# ── answers and signals ──────────────────────────────────────────────────────────────────────────────────────────────


async def approve(args: Namespace) -> int:
    """`onward approve`."""
    return await _decide(args, "approve", "approved")


async def deny(args: Namespace) -> int:
    """`onward deny`."""
    return await _decide(args, "deny", "denied")


async def _decide(args: Namespace, decision: str, done: str) -> int:
    screen = Screen(args)
    options = {} if decision == "deny" else {"arguments": _arguments(args.arguments), "always": args.always}
    async with connect.open_backend(args) as backend:
        ask = await connect.resolve_ask(backend, args.id, "approval", f"onward {decision}")
        if args.id is None and not screen.json:
            _show(screen, ask, await backend.asked_in(ask.id))
        decided = await backend.decide(
            ask.id, decision, reason=args.reason, hash=args.hash, digest=args.digest, **options
        )
        task = await backend.get(ask.task_id)
    if screen.json:
        fields = {"decision": decision, "reason": args.reason or None, **options, "task_state": task.state}
        counts = {} if ask.rule is None else {"decided": decided.decided, "votes": _votes_json(decided)}
        screen.document(ask_json(ask) | {name: value for name, value in fields.items() if value is not None} | counts)
    elif decided.decided:
        _confirm(screen, done, _decided_words(ask, **options), task)
    else:
        _confirm(screen, f"voted, {decided.votes} of {decided.needed}", safe(ask.text), task)
    return 0


def _arguments(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    value = read_input(given)
    if not isinstance(value, dict):
        raise UsageError('--arguments is a JSON object with all arguments of the tool, such as {"path": "/tmp"}')
    return value


def _decided_words(ask: Ask, arguments: dict[str, Any] | None = None, always: bool = False) -> str:
    action = safe(ask.text) if arguments is None else f"{safe(ask.tool)} with {safe(readable(arguments))}"
    return f"{action}, and {safe(ask.tool)} always in this task" if always else action


def _show(screen: Screen, ask: Ask, asked: AskedIn | None = None) -> None:
    now = time.time()
    screen.say((safe(ask.text), "bold"))
    at_expiry = {"deny": "denied", "approve": "approved"}.get(ask.default or "")
    left = None if ask.expires_at is None else f"{iso(ask.expires_at)}, in {span(ask.expires_at - now)}"
    pairs = [
        ("id", ask.id),
        ("task", ask.task),
        ("asked", f"{age(now - ask.asked_at)} ago"),
        ("risk", ask.risk),
        ("tool", ask.tool),
        ("does", ask.description),
        ("effect", None if ask.effect is None else f"{ask.effect}: {EFFECTS.get(ask.effect, '')}".rstrip(": ")),
        ("reason", None if asked is None or not asked.reason else f"{asked.reason.strip()} (turn {asked.turn})"),
        ("arguments", None if ask.arguments is None else readable(ask.arguments)),
        ("metadata", readable(ask.data["metadata"]) if ask.tool is not None and "metadata" in ask.data else None),
        ("data", None if ask.data is None or ask.tool is not None else readable(ask.data)),
        ("expires", None if left is None else f"{left}: {at_expiry} then"),
        ("rule", None if ask.rule is None else str(ask.rule)),
        ("votes", None if ask.rule is None or "votes" in ask.left_out else _votes_words(ask.rule, ask.votes)),
        ("hash", ask.hash),
        ("digest", ask.digest),
        ("left out", f"{', '.join(ask.left_out)}; `onward approvals {ask.id}` shows all" if ask.left_out else None),
    ]
    screen.block(indented(facts(pairs)))


def _votes_words(rule: ApprovalRule, votes: Sequence[Vote]) -> str:
    """How many approved, and who; and how many are missing."""
    number = approving(votes)
    names = ", ".join(vote.by or vote.voter for vote in votes)
    return f"{number} of {rule.votes}{f' ({names})' if names else ''}"


def _votes_json(decided: Decided) -> dict[str, int | None]:
    return {"approved": decided.votes, "needed": decided.needed}


async def answer(args: Namespace) -> int:
    """`onward answer`."""
    screen = Screen(args)
    if (args.text is None) == (args.value is None):
        raise UsageError("give the answer as TEXT, or as JSON with --value, and not both: onward answer QUESTION TEXT")
    value = args.text if args.value is None else read_input(args.value)
    async with connect.open_backend(args) as backend:
        ask = await connect.resolve_ask(backend, args.id, "question", "onward answer")
        await backend.answer(ask.id, value)
        task = await backend.get(ask.task_id)
    if screen.json:
        screen.document(ask_json(ask) | {"answer": value, "task_state": task.state})
    else:
        _confirm(screen, "answered", f"{safe(ask.text)} {short(readable(value), 200)}", task)
    return 0


async def signal(args: Namespace) -> int:
    """`onward signal`."""
    screen = Screen(args)
    value = read_input(args.value)
    async with connect.open_backend(args) as backend:
        task_id = await connect.resolve_task_id(backend, args.id)
        await backend.signal(task_id, args.name, value, id=args.key)
        task = await backend.get(task_id)
    if screen.json:
        screen.document({"task_id": task_id, "signal": args.name, "value": value, "task_state": task.state})
    else:
        _confirm(screen, "sent", f"signal {safe(args.name)}", task)
    return 0


async def message(args: Namespace) -> int:
    """`onward message`."""
    screen = Screen(args)
    text = sys.stdin.read() if args.text == "-" else args.text
    async with connect.open_backend(args) as backend:
        task_id = await connect.resolve_task_id(backend, args.id)
        await backend.message(task_id, text, id=args.key)
        task = await backend.get(task_id)
        handlers = [] if screen.json else await connect.everything(backend.handlers)
    if screen.json:
        screen.document(task_json(task))
        return 0
    agent = any(handler.name == task.task and handler.kind == "agent" for handler in handlers)
    handler = "the handler receives it as the signal 'message', if it waits for that"
    _confirm(screen, "sent", "the agent reads it before its next turn" if agent else handler, task)
    return 0


def _confirm(screen: Screen, done: str, what: str, task: Task) -> None:
    screen.say((f"{done}: ", "green"), what, (f"  task {task.task_id} ({safe(task.task)})", "dim"))


# ── effects in doubt ─────────────────────────────────────────────────────────────────────────────────────────────────


async def resolve(args: Namespace) -> int:
    """`onward resolve`."""
    screen = Screen(args)
    verdict = None if args.verdict is None else _verdict(args.verdict)
    if args.result is not None and verdict != "happened":
        raise UsageError("--result is the result of an effect that happened: onward resolve ID happened --result JSON")
    result = read_input(args.result)
    async with connect.open_backend(args) as backend:
        task = await backend.get(await connect.resolve_task_id(backend, args.id))
        doubts = await backend.doubts(task.task_id)
        if verdict is None:
            return _print_doubts(screen, task, doubts)
        return await _resolve(screen, backend, task, _pick_doubt(task, doubts, args.step), verdict, result)


async def _resolve(
    screen: Screen, backend: connect.Backend, task: Task, doubt: Doubt, verdict: str, result: Any
) -> int:
    await backend.resolve(task.task_id, verdict, result, step=doubt.step)
    task = await backend.get(task.task_id)
    if screen.json:
        screen.document(task_json(task) | {"step": doubt.step, "verdict": verdict})
    else:
        _confirm(screen, verdict.replace("_", " "), plain_key(doubt.step), task)
    return 0


def _verdict(given: str) -> str:
    verdict = given.lower().replace("-", "_")
    if verdict not in VERDICTS:
        raise UsageError(f"{given!r} is no verdict: say {', '.join(VERDICTS[:-1])} or {VERDICTS[-1]}")
    return verdict


def _pick_doubt(task: Task, doubts: list[Doubt], step: str | None) -> Doubt:
    """The effect of this step. The branch in its key may be left out if only one step has the name."""
    if not doubts:
        raise StateConflict(task.task_id, task.state, "resolved", "no effect of it is in doubt")
    exact = [doubt for doubt in doubts if doubt.step == step]
    matching = exact or [doubt for doubt in doubts if step in {None, plain_key(doubt.step)}]
    if len(matching) == 1:
        return matching[0]
    names = " or ".join(f"--step '{safe(doubt.step)}'" for doubt in doubts)
    if not matching:
        raise UsageError(f"no effect {step!r} of task {task.task_id} is in doubt; say {names}")
    raise UsageError(f"{count(len(matching), 'effect')} of task {task.task_id} are in doubt; say which: {names}")


def _print_doubts(screen: Screen, task: Task, doubts: list[Doubt]) -> int:
    if screen.json:
        effects = [{"step": doubt.step, "seq": doubt.seq, "reason": doubt.reason} for doubt in doubts]
        screen.document({"task_id": task.task_id, "task": task.task, "doubts": effects, "verdicts": MEANINGS})
        return 0
    if not doubts:
        screen.aside(f"no effect of task {task.task_id} ({safe(task.task)}) is in doubt")
        return 0
    screen.say((safe(task.task), "bold"), f"  it is unknown whether this happened (task {task.task_id}):")
    screen.block(indented(facts([(safe(doubt.step), doubt.reason) for doubt in doubts])))
    if task.ended:
        screen.aside(f"the task is {task.state}, so its effects cannot be resolved any more")
        return 0
    screen.say()
    screen.say("Check it, then type one of:")
    several = " --step NAME" if len(doubts) > 1 else ""
    commands = {verdict: f"onward resolve {task.task_id[-8:]} {verdict}{several}" for verdict in VERDICTS}
    screen.block(indented(facts([(commands[verdict], MEANINGS[verdict]) for verdict in VERDICTS])))
    return 0
