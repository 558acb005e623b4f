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

from rich.text import Text

from onward.agent.model import ModelUnavailable
from onward.cli.args import connect
from onward.cli.commands.follow import WAITS_FOR_A_PERSON
from onward.cli.demo.agent_proof import AgentProof
from onward.cli.demo.agent_view import AgentBoard, parse_object
from onward.cli.demo.runner import Demo, Stage, run_demo
from onward.cli.demo.workers import DemoFailed
from onward.cli.output.screen import Screen
from onward.core.durations import seconds
from onward.core.journal.reader import fields, step_name
from onward.core.journal.turns import model_call
from onward.core.record import STEP_DONE, STEP_FAILED, STEP_RETRY, Record
from onward.core.task import ASKS_A_PERSON, State, Task
from onward.core.text import safe, span
from onward.core.views import Ask
from onward.demo.agent import GOAL, SCRIPTED, TASK, model_words, real_model
from onward.demo.disk import FOLDER_VARIABLE, Disk
from onward.errors import AlreadyDecided, OnwardError, UsageError

MODEL_TIMEOUT_S = 300.0
"""Time after which the demo with a real model gives up, without the time of people."""

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

    def make(stage: Stage) -> AgentDemo:
        disk = Disk.make(stage.folder)
        facts = {"model": model_words(os.environ), "disk": f"{disk.root}, with {len(disk.files())} real files"}
        board = AgentBoard(screen, facts)
        return AgentDemo(
            stage, disk, _Decider(screen, board, stage, yes=args.yes, patience=patience, own=args.db is None)
        )

    return await run_demo(args, screen, AgentDemo.target, make)


def _check_model() -> None:
    """Raises UsageError if the model needs an extra that is not installed."""
    name = real_model(os.environ)
    if name and importlib.util.find_spec("openai") is None:
        raise UsageError(
            f"the model {name} needs an extra that is not installed: pip install 'onward[openai]', "
            "or unset OPENAI_API_KEY and OPENAI_BASE_URL for the scripted model"
        )


class AgentDemo(Demo[AgentProof]):
    """Three workers, one agent, two kills."""

    target = "onward.demo.agent:app"
    request = TASK, GOAL
    board: AgentBoard

    def __init__(self, stage: Stage, disk: Disk, decider: _Decider) -> None:
        self._disk, self._decider, self._before = disk, decider, disk.digests()
        # another demo on this database has another disk, so the workers take only the queue of this one
        super().__init__(
            stage, decider.board, queue=stage.folder.name, environment={FOLDER_VARIABLE: str(stage.folder)}
        )
        self.timeout_s = MODEL_TIMEOUT_S if real_model(os.environ) else self.timeout_s
        self._model_failures = 0

    async def act(self, task: Task) -> float:
        began = time.monotonic()
        if task.reason in ASKS_A_PERSON:
            await self._ask_person(task)
            return time.monotonic() - began
        if self._has_deleted() and all(kill.waiting for kill in self.kills):
            await self._kill(task.task_id, "the files are gone, the journal does not know", waiting=False)
            self.workers.start()
        return 0.0

    async def _ask_person(self, task: Task) -> None:
        """Let a person decide. The first approval is decided after the worker was killed: only the database has it then."""
        asks = [ask for ask in await self.app.asks() if ask.task_id == task.task_id]
        for ask in asks:
            self.board.asked(ask)
            if ask.kind == "approval" and not self.kills:
                await self._kill(task.task_id, "while the task waits; the question is in the database", waiting=True)
            await self._decider.decide(ask)
        if asks and not self.workers.working:
            self.workers.start()

    async def _kill(self, task_id: str, where: str, *, waiting: bool) -> None:
        await self.kill(task_id, where, waiting=waiting)
        self._disk.ledger.write({"what": "killed", "waiting": waiting})

    def _has_deleted(self) -> bool:
        return any(line["what"] == "done" for line in self._disk.ledger.lines())

    async def show(self, task_id: str, record: Record) -> None:
        self.board.record(record, await self._message(task_id, record))
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
        contents = await self.app.service.contents(task_id, [name]) if isinstance(name, str) else {}
        return parse_object(contents.get(name or ""))

    def proof(self, task: Task, records: list[Record]) -> AgentProof:
        if task.state is not State.COMPLETED:
            raise DemoFailed(_failure(task, records))
        ledger, model = self._disk.ledger.lines(), real_model(os.environ) or SCRIPTED
        return AgentProof(task, records, self.kills, ledger, self._before, self._disk.digests(), model)


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

    def __init__(
        self, screen: Screen, board: AgentBoard, stage: Stage, *, yes: bool, patience: float, own: bool
    ) -> None:
        self.board, self._screen, self._app, self._db, self._own = board, screen, stage.app, stage.db, own
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
        try:
            loop.add_reader(fd, line.set)
        except NotImplementedError:  # Windows: a decision from elsewhere is noticed after the line
            text = await asyncio.to_thread(sys.stdin.readline)
            return text.strip() if text else "n"
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
