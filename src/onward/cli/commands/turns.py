"""Parts of `onward show`: the list of turns of an agent, the messages of one turn, and one record in full."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from onward.cli.args.connect import Backend
from onward.cli.output.screen import Screen, facts, indented
from onward.cli.output.table import Column, number
from onward.cli.output.text import local, readable, safe, safe_lines, span
from onward.core.task import Task
from onward.core.view_json import parse_time
from onward.errors import NotFound, UsageError
from onward.service.serialize import turn_json

MAX_TURNS = 1000
_VALUES = ("input", "output", "error")
COLUMNS = (
    number("TURN"),
    Column("MODEL", drop=3),
    number("TOOK", drop=1),
    number("IN"),
    number("OUT"),
    number("COST", drop=2),
    Column("TOOLS"),
    Column("SAID", 12),
)


async def show(screen: Screen, backend: Backend, task: Task, number: int) -> int:
    """`onward show ID --turn N`."""
    try:
        turn = await backend.turn(task.task_id, number)
    except NotFound as error:
        raise UsageError(str(error)) from None
    if screen.json:
        call = {"turn": number, "model": turn.view.model, "usage": turn.usage, "finish": turn.view.finish}
        screen.document({**call, "messages": turn.messages, "reply": turn.reply})
        return 0
    for message in [*turn.messages, turn.reply]:
        screen.say((safe(message["role"]), "bold"))
        for text in (message.get("content"), *_calls(message)):
            if text:
                screen.say(safe_lines(text))
        screen.say()
    return 0


async def show_all(screen: Screen, backend: Backend, task: Task) -> int:
    """`onward show ID --turns`."""
    turns = await backend.turns(task.task_id, limit=MAX_TURNS)
    rows = [
        (
            Text(str(turn.turn)),
            Text(safe(turn.model), "dim"),
            Text("" if turn.took_s is None else span(turn.took_s)),
            Text("?" if turn.input_tokens is None else f"{turn.input_tokens:,}"),
            Text("?" if turn.output_tokens is None else f"{turn.output_tokens:,}"),
            Text("?" if turn.cost_usd is None else f"${turn.cost_usd:,.4f}"),
            Text(safe(", ".join(turn.tools)), "cyan"),
            Text(safe(turn.text), "dim"),
        )
        for turn in turns
    ]
    document = {"task_id": task.task_id, "turns": [turn_json(turn) for turn in turns]}
    empty = f"task {task.task_id} has no turns: it is no agent, or has not called its model yet"
    return screen.table(document, COLUMNS, rows, empty)


async def show_record(screen: Screen, backend: Backend, task: Task, seq: int) -> int:
    """`onward show ID --record N`."""
    record = await backend.record_json(task.task_id, seq)
    if screen.json:
        screen.document({"task_id": task.task_id, **record})
        return 0
    screen.say((f"record {record['seq']}", "bold"), f"  {record['kind']}  ", safe(record["key"]))
    shown = [(name, None if record[name] is None else cut(readable(record[name]))) for name in _VALUES]
    payload = record["text"] if record["truncated"] else readable(record["data"])
    rest = None if any(text for _, text in shown) else cut(payload)
    screen.block(
        indented(
            facts(
                [
                    ("at", local(parse_time(record["at"]))),
                    ("shift", str(record["shift"]) if record["shift"] else None),
                    *shown,
                    ("payload", rest),
                    ("attempts", None if record["attempts"] is None else str(record["attempts"])),
                    ("effect key", record["effect_key"]),
                ]
            )
        )
    )
    return 0


def cut(text: str, limit: int = 2000) -> str:
    """The beginning of a long text; --json has all of it."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters; --json has more)"


def _calls(message: dict[str, Any]) -> list[str]:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return [f"calls {call['name']}({call['arguments']})" for call in calls]
