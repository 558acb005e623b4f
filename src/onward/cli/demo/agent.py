"""demo agent: an agent frees a real disk. Its workers are killed with -9 on the way: while it waits for an approval, and when the files
are deleted but the journal does not have that yet. Only the moments of the kills are chosen."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path

from rich.text import Text

from onward.agent.model import ModelUnavailable
from onward.app.application import Onward
from onward.cli.args import connect
from onward.cli.commands.follow import WAITS_FOR_A_PERSON
from onward.cli.demo.agent_proof import AgentProof, Moment
from onward.cli.demo.agent_view import AgentBoard, parse_object, print_report
from onward.cli.demo.runner import run_demo
from onward.cli.demo.workers import DemoFailed, DemoWorkers
from onward.cli.output.screen import Screen
from onward.cli.output.text import safe, span
from onward.core.durations import seconds
from onward.core.journal.reader import fields, step_name
from onward.core.journal.turns import model_call
from onward.core.record import STEP_DONE, STEP_FAILED, STEP_RETRY, Record
from onward.core.task import ASKS_A_PERSON, State, Task
from onward.core.views import Ask
from onward.demo.agent import GOAL, SCRIPTED, TASK, delete_logs, model_words, real_model
from onward.demo.disk import FOLDER_VARIABLE, Disk
from onward.errors import AlreadyDecided, OnwardError, UsageError

APP = "onward.demo.agent:app"
SCRIPTED_TIMEOUT_S, MODEL_TIMEOUT_S = 60.0, 300.0
"""Times after which the demo gives up, without the time of people. With the scripted model it takes about ten seconds."""

MAX_MODEL_FAILURES = 3
"""Failed attempts in a row to reach the model, after which the demo gives up."""

NO_PERSON = "There is nobody to ask. Do what you think is right, and say what you did."
"""The answer to a question of the agent if --yes was given."""


class NotDecided(OnwardError):
    """No person decided on the approval of the agent in time."""

    code = "waits_for_a_person"
    exit_status = WAITS_FOR_A_PERSON


async def demo_agent(args: Namespace) -> int:
    """`onward demo agent`."""
    screen = Screen(args)
    patience = seconds(args.patience, "--patience")
    _check_model()

    async def play(app: Onward, db: str, folder: Path) -> AgentProof:
        decider = _Decider(screen, app, db, yes=args.yes, patience=patience, own=args.db is None)
        return await _Play(screen, app, db, folder, Disk.make(folder), decider).run()

    return await run_demo(args, screen, APP, play, print_report, keep=args.keep)


def _check_model() -> None:
    """Raises UsageError if the model needs an extra that is not installed."""
    name = real_model(os.environ)
    if name and importlib.util.find_spec("openai") is None:
        raise UsageError(
            f"the model {name} needs an extra that is not installed: pip install 'onward[openai]', "
            "or unset OPENAI_API_KEY and OPENAI_BASE_URL for the scripted model"
        )


class _Play:
    """Three workers, one agent, two kills."""

    def __init__(self, screen: Screen, app: Onward, db: str, folder: Path, disk: Disk, decider: _Decider) -> None:
        self._app, self._disk, self._decider = app, disk, decider
        self._board = decider.board = AgentBoard(screen)
        self._queue = folder.name  # another demo on this database has another disk
        self._workers = DemoWorkers(
            APP, db, folder, self._board.started, queue=self._queue, environment={FOLDER_VARIABLE: str(folder)}
        )
        self._timeout_s = MODEL_TIMEOUT_S if real_model(os.environ) else SCRIPTED_TIMEOUT_S
        self._moments: list[Moment] = []
        self._shown_seq = self._model_failures = 0

    async def run(self) -> AgentProof:
        """Play, and collect the proof."""
        before = self._disk.digests()
        with self._workers.terminated():
            handle = await self._app.submit(TASK, GOAL, queue=self._queue)
            async with self._cancelled_on_error(handle.id):
                disk = f"{self._disk.root}, with {len(before)} real files"
                facts = {"model": model_words(os.environ), "disk": disk, "task": handle.id}
                with self._board.shown(GOAL, facts):
                    task = await self._play(handle.id)
        if task.state is not State.COMPLETED:
            raise DemoFailed(_failure(task, await self._app.service.timelines.all(task.task_id)))
        return AgentProof(
            task,
            await self._app.service.timelines.all(task.task_id),
            self._disk.ledger.lines(),
            self._moments,
            before,
            self._disk.digests(),
            real_model(os.environ) or SCRIPTED,
        )

    async def _play(self, task_id: str) -> Task:
        self._workers.start()
        until = time.monotonic() + self._timeout_s
        while not (task := await self._app.get(task_id)).ended:
            self._workers.check_alive()
            await self._show_new_records(task_id)
            if task.reason in ASKS_A_PERSON:
                asked_at = time.monotonic()
                await self._ask_person(task)
                until += time.monotonic() - asked_at
            elif self._has_deleted() and not any(not moment.waiting for moment in self._moments):
                await self._kill(task_id, "the files are gone, the journal does not know", waiting=False)
                self._workers.start()
            elif time.monotonic() > until:
                raise DemoFailed(f"the demo did not end within {self._timeout_s:g} s; {self._workers.log_tail()}")
            await asyncio.sleep(0.02)
        await self._show_new_records(task_id)
        return task

    async def _ask_person(self, task: Task) -> None:
        """Let a person decide. The first approval is decided after the worker was killed: only the database has it then."""
        asks = [ask for ask in await self._app.asks() if ask.task_id == task.task_id]
        if not asks:
            return
        for ask in asks:
            self._board.asked(ask)
            if ask.kind == "approval" and not self._moments:
                await self._kill(task.task_id, "while the task waits; the question is in the database", waiting=True)
            await self._decider.decide(ask)
        if not self._workers.working:
            self._workers.start()

    async def _kill(self, task_id: str, where: str, *, waiting: bool) -> None:
        kill = self._workers.kill()
        records = await self._app.service.timelines.all(task_id)
        recorded = any(record.kind == STEP_DONE and step_name(record.key) == delete_logs.name for record in records)
        deleted = sum(line["what"] == "deleted" for line in self._disk.ledger.lines())
        self._moments.append(Moment(kill, waiting, deleted, recorded))
        self._disk.ledger.write({"what": "killed", "waiting": waiting})
        self._board.killed(where)

    def _has_deleted(self) -> bool:
        return any(line["what"] == "done" for line in self._disk.ledger.lines())

    async def _show_new_records(self, task_id: str) -> None:
        for record in await self._app.service.journal(task_id, self._shown_seq):
            self._shown_seq = record.seq
            self._board.record(record, await self._message(task_id, record))
            self._count_failures(record)

    def _count_failures(self, record: Record) -> None:
        """Raises DemoFailed if the model cannot be reached. The agent itself would retry for half a minute."""
        if model_call(record) is not None:
            self._model_failures = 0
        elif record.kind == STEP_RETRY and _error(record).get("type") == ModelUnavailable.__name__:
            self._model_failures += 1
            if self._model_failures == MAX_MODEL_FAILURES:
                advice = "; check OPENAI_BASE_URL and the network"
                raise DemoFailed(_sentence(_error(record).get("message"), advice))

    async def _message(self, task_id: str, record: Record) -> dict[str, object]:
        """The message of the model or the tool in this record."""
        if record.kind != STEP_DONE:
            return {}
        result = model_call(record) or fields(record).get("result")
        name = result.get("id") if isinstance(result, dict) else None
        contents = await self._app.service.contents(task_id, [name]) if isinstance(name, str) else {}
        return parse_object(contents.get(name or ""))

    @contextlib.asynccontextmanager
    async def _cancelled_on_error(self, task_id: str) -> AsyncIterator[None]:
        """Cancel the task if the demo stops early: its disk is deleted, so no other worker may continue it."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OnwardError):
                await self._app.cancel(task_id)
            raise


def _failure(task: Task, records: list[Record]) -> str:
    """The cause why the agent did not complete."""
    failed = [record for record in records if record.kind == STEP_FAILED and step_name(record.key) == "model"]
    error = _error(failed[-1]) if failed else task.error or {}
    return _sentence(error.get("message") or task.state)


def _error(record: Record) -> dict[str, object]:
    error = fields(record).get("error")
    return error if isinstance(error, dict) else {}


def _sentence(cause: object, advice: str = "") -> str:
    sentence = f"the agent could not go on: {str(cause).rstrip('.')}{advice}"
    if not real_model(os.environ):
        return sentence
    return f"{sentence}; without OPENAI_API_KEY and OPENAI_BASE_URL the demo uses a scripted model"


# ── people ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Decider:
    """Gets the decision: from --yes, from this terminal, or from another one."""

    board: AgentBoard

    def __init__(self, screen: Screen, app: Onward, db: str, *, yes: bool, patience: float, own: bool) -> None:
        self._screen, self._app, self._db, self._own = screen, app, db, own
        self._yes, self._patience = yes, patience
        self._here = sys.stdin.isatty() and not screen.json

    async def decide(self, ask: Ask) -> None:
        """Decide, or wait until a person has decided."""
        with contextlib.suppress(AlreadyDecided):
            if self._yes:
                await self._send(ask, "y" if ask.kind == "approval" else NO_PERSON, "demo --yes")
            elif self._here:
                await self._prompt(ask)
            else:
                await self._wait_elsewhere(ask)

    async def _send(self, ask: Ask, text: str, by: str) -> None:
        if ask.kind == "question":
            await self._app.answer(ask.id, text)
            return
        yes = text.lower() in {"y", "yes"}
        reason = "" if yes else "a person said no"
        await self._app.decide(ask.id, "approve" if yes else "deny", reason=reason, by=by)

    async def _prompt(self, ask: Ask) -> None:
        with self.board.paused():
            while True:
                prompt = "  Allow it? [y/n] " if ask.kind == "approval" else "  Your answer: "
                self._screen.out.print(Text(prompt, "bold"), end="")
                self._screen.out.file.flush()
                text = await self._read_line(ask)
                if text is None:  # another terminal was quicker
                    self._screen.say()
                    return
                if text and (ask.kind == "question" or text.lower() in {"y", "yes", "n", "no"}):
                    await self._send(ask, text, "demo prompt")
                    return

    async def _read_line(self, ask: Ask) -> str | None:
        """A line from the terminal (Ctrl-D means no); None if the decision came from elsewhere."""
        loop, line = asyncio.get_running_loop(), asyncio.Event()
        fd = sys.stdin.fileno()
        loop.add_reader(fd, line.set)
        try:
            while not line.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(line.wait(), 0.5)
                if not line.is_set() and not await self._is_open(ask):
                    return None
        finally:
            loop.remove_reader(fd)
        text = sys.stdin.readline()
        return text.strip() if text else "n"

    async def _is_open(self, ask: Ask) -> bool:
        return ask.id in {other.id for other in await self._app.asks()}

    async def _wait_elsewhere(self, ask: Ask) -> None:
        verbs = {"approval": "approve", "question": "answer"}
        db = f" --db {shlex.quote(self._db)}" if self._own else " --db URL"
        text = " TEXT" if ask.kind == "question" else ""
        command = f"onward {verbs[ask.kind]} {connect.short_ask_id(ask.id)}{text}{db}"
        how = "(or deny; or start the demo with --yes)" if ask.kind == "approval" else "(or start the demo with --yes)"
        self._screen.err.print(
            f"  In another terminal, within {span(self._patience)}: {safe(command)}  {how}", soft_wrap=True
        )
        end = time.monotonic() + self._patience
        while await self._is_open(ask):
            if time.monotonic() > end:
                raise NotDecided(
                    f"no person decided within {span(self._patience)}, so the agent was stopped; "
                    "start it in a terminal, or with --yes"
                )
            await asyncio.sleep(0.1)
