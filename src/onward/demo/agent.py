"""The app of `onward demo agent`: an agent that gets the goal "I'm out of disk space. Fix it.", and fixes it.

With OPENAI_API_KEY or OPENAI_BASE_URL it uses that model (ONWARD_MODEL names it); otherwise a scripted one. The script decides what
to do next; it reads the names, sizes and denials for its replies from the results of the tools, as a model would.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from onward.agent.model import Emit, Model, Reply, Request, ToolCall, Usage
from onward.agent.models import model_of
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.app.application import Onward
from onward.core.budget import Budget
from onward.demo import QUEUE, default_db
from onward.demo.disk import CRITICAL_PERCENT, QUOTA_BYTES, Disk, megabytes
from onward.engine.context.context import Context
from onward.errors import UsageError

TASK = "demo.agent"
GOAL = "I'm out of disk space. Fix it."
DEFAULT_MODEL = "gpt-5-mini"
SCRIPTED = "scripted"
OLD_AFTER_DAYS = 7
"""Days after which a rotated log is old."""

THINK_S, DELETE_S = 0.4, 0.08
"""Seconds that the scripted model takes for an answer, and a deletion for a file."""
MAX_LINGER_S = 5.0
"""Seconds that the first deletion may take to return: the demo kills its worker there, after the effect and before the record."""

INSTRUCTIONS = f"""You are an autonomous DevOps agent on a machine with one small disk. Look before you touch anything.
Make room by deleting rotated logs that are older than {OLD_AFTER_DAYS} days, all of them in one call of delete_logs; a person approves it
first. When the person says no, delete nothing and say so. Afterwards look at the disk again, and report in two sentences
what was deleted and how full the disk is now."""

app = Onward(default_db())


# ── tools ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@tool
def check_disk() -> str:
    """How full is the disk, and which folders are the largest?"""
    files = Disk.here().files()
    used = sum(file.bytes for file in files)
    percent = 100 * used // QUOTA_BYTES
    folders: dict[str, int] = {}
    for file in files:
        folder = file.path.rpartition("/")[0]
        folders[folder] = folders.get(folder, 0) + file.bytes
    largest = sorted(folders.items(), key=lambda item: -item[1])
    grade = "CRITICAL" if percent >= CRITICAL_PERCENT else "fine"
    return "\n".join(
        [
            f"{megabytes(used)} of {megabytes(QUOTA_BYTES)} are used ({percent} %, {grade})",
            *(f"{megabytes(size):>8}  {name}" for name, size in largest),
        ]
    )


@tool
def largest_files(most: int = 20) -> str:
    """The largest files: size, days since the last write, rotated or in use, path."""
    lines = [
        f"{megabytes(file.bytes):>8}  {file.days:>3} days  {file.kind:<7}  {file.path}" for file in Disk.here().files()
    ]
    return "\n".join(lines[: max(1, most)])


@tool
def read_tail(path: str, lines: int = 3) -> str:
    """The last lines of a log."""
    disk = Disk.here()
    file = disk.path(path)
    if not file.is_file():
        raise UsageError(f"there is no file {path!r} on this disk")
    text = file.read_bytes()[-20_000:].decode("utf-8", "replace")
    return "\n".join(text.splitlines()[-max(1, min(lines, 50)) :])


def were_deleted(paths: list[str]) -> str | None:
    """Whether the deletion has happened. Onward calls it when the worker that deleted died before it could record the result."""
    disk = Disk.here()
    return disk.freed(paths) if disk.gone(paths) else None


@tool(risk="write_local", reconcile=were_deleted)
async def delete_logs(ctx: Context, paths: list[str]) -> str:
    """Delete rotated logs (*.log.1 and so on) for good. A log that is in use is refused."""
    disk = Disk.here()
    for _ in disk.delete(paths, ctx.key):
        await asyncio.sleep(DELETE_S)
    for _ in range(int(MAX_LINGER_S / 0.1)):
        if any(line["what"] == "killed" and not line["waiting"] for line in disk.ledger.lines()):
            break
        await asyncio.sleep(0.1)
    return disk.freed(paths)


# ── the script ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _look(request: Request) -> Reply:
    plan = [
        "see how full the disk is",
        "find what can go",
        f"delete rotated logs older than {OLD_AFTER_DAYS} days",
        "look again",
    ]
    return _reply(request, "I will look before I touch anything.", ("update_plan", {"plan": plan}), ("check_disk", {}))


def _find(request: Request) -> Reply:
    return _reply(request, f"The disk: {_first_line(request, 'check_disk')}. What is so large?", ("largest_files", {}))


def _read(request: Request) -> Reply:
    old = _old_logs(request)
    if not old:
        return _reply(request, "There are no old rotated logs here, so there is nothing that I may delete.")
    text = (
        f"{len(old)} rotated logs are older than {OLD_AFTER_DAYS} days. Is there anything in them that somebody needs?"
    )
    return _reply(request, text, ("read_tail", {"path": old[0], "lines": 2}))


def _delete(request: Request) -> Reply:
    return _reply(request, "Old requests, nothing else. They can go.", ("delete_logs", {"paths": _old_logs(request)}))


def _verify(request: Request) -> Reply:
    result = _result(request, "delete_logs")
    outcome = f"The tool says: {result}." if result.startswith("deleted ") else "That was not done."
    return _reply(request, f"{outcome} I look again.", ("check_disk", {}))


def _report(request: Request) -> Reply:
    result, disk = _result(request, "delete_logs"), _first_line(request, "check_disk")
    if result.startswith("deleted "):
        return _reply(request, f"I {result}: rotated logs older than {OLD_AFTER_DAYS} days. Now {disk}.")
    return _reply(request, f"I deleted nothing ({result}), so the disk is as full as it was: {disk}.")


SCRIPT = [_look, _find, _read, _delete, _verify, _report]


def _reply(request: Request, text: str, *calls: tuple[str, dict[str, Any]]) -> Reply:
    turn = sum(message["role"] == "assistant" for message in request.messages)
    tool_calls = [
        ToolCall(f"call_{turn}_{number}", name, json.dumps(args)) for number, (name, args) in enumerate(calls)
    ]
    request_chars = sum(len(str(message.get("content"))) for message in request.messages)
    usage = Usage(request_chars // 4, (len(text) + sum(len(call.arguments) for call in tool_calls)) // 4 + 1)
    return Reply(text, tuple(tool_calls), usage, "tool_calls" if tool_calls else "stop")


def _result(request: Request, name: str) -> str:
    """The result of the last call of this tool."""
    result = ""
    ids = {
        call["id"]
        for message in request.messages
        for call in message.get("tool_calls", ())
        if call["function"]["name"] == name
    }
    for message in request.messages:
        if message["role"] == "tool" and message["tool_call_id"] in ids:
            result = str(message["content"])
    return result


def _first_line(request: Request, name: str) -> str:
    return _result(request, name).partition("\n")[0]


def _old_logs(request: Request) -> list[str]:
    listed = re.findall(r"(\d+) days +rotated +(\S+)", _result(request, "largest_files"))
    return sorted(path for days, path in listed if int(days) > OLD_AFTER_DAYS)


# ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────────


class LedgerModel:
    """A model whose requests are in the ledger, so that the demo can compare them with the journal."""

    def __init__(self, name: str, make: Callable[[], Model]) -> None:
        self.name, self._make = name, make
        self._model: Model | None = None

    async def ask(self, request: Request, emit: Emit) -> Reply:
        """Ask the model that it stands for."""
        ledger = Disk.here().ledger
        ledger.write({"what": "model", "pid": os.getpid()})
        self._model = self._model or self._make()
        reply = await self._model.ask(request, emit)
        ledger.write({"what": "answered", "pid": os.getpid()})
        return reply


class _SlowScriptedModel(ScriptedModel):
    """A scripted model that takes its time, so that one can watch it."""

    async def ask(self, request: Request, emit: Emit) -> Reply:
        await asyncio.sleep(THINK_S)
        return await super().ask(request, emit)


def real_model(environment: Mapping[str, str]) -> str:
    """The name of the model that the environment names; empty when it names none."""
    if not environment.get("OPENAI_API_KEY") and not environment.get("OPENAI_BASE_URL"):
        return ""
    return (environment.get("ONWARD_MODEL") or DEFAULT_MODEL).removeprefix("openai:")


def model_words(environment: Mapping[str, str]) -> str:
    """Which model the demo uses, and why, as a phrase."""
    name = real_model(environment)
    if not name:
        return "a scripted one (with OPENAI_API_KEY or OPENAI_BASE_URL, a real one)"
    base = environment.get("OPENAI_BASE_URL")
    if not base:
        return f"{name} of OpenAI, as OPENAI_API_KEY is set (your account pays for it)"
    return f"{name} at {urlsplit(base).netloc.rpartition('@')[2] or base}, as OPENAI_BASE_URL says"


def _model() -> Model:
    name = real_model(os.environ)
    if name:
        return LedgerModel(name, lambda: model_of(f"openai:{name}"))
    return LedgerModel(SCRIPTED, lambda: _SlowScriptedModel(SCRIPT))


app.agent(
    TASK,
    model=_model(),
    instructions=INSTRUCTIONS,
    tools=[check_disk, largest_files, read_tail, delete_logs],
    approve=["write_local"],
    budget=Budget(max_steps=20),
    retry=1,
    queue=QUEUE,
)
