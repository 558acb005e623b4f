"""demo agent: an agent frees a real disk, and its workers are killed with -9 on the way: while it waits for a yes, and when the
files are gone and nobody has written that down. Nothing here is staged but the moments of the kills."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shlex
import shutil
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from rich.text import Text

from onward.agent.model import ModelUnavailable
from onward.app.application import Onward
from onward.cli.args import connect as door
from onward.cli.args.loading import load
from onward.cli.commands.follow import WAITS_FOR_A_PERSON
from onward.cli.commands.tasks import journal
from onward.cli.demo.agent_proof import AgentProof, Moment
from onward.cli.demo.agent_view import AgentBoard, parsed, print_report, step_name
from onward.cli.demo.workers import Crew, DemoFailed, terminable
from onward.cli.output.screen import Screen
from onward.cli.output.text import safe, span
from onward.core.durations import seconds
from onward.core.journal.turns import model_call
from onward.core.record import STEP_DONE, STEP_FAILED, STEP_RETRY, Record
from onward.core.task import ASKS_A_PERSON, State, Task
from onward.core.views import Ask
from onward.demo.agent import GOAL, SCRIPTED, TASK, delete_logs, model_words, real_model
from onward.demo.disk import FOLDER_VARIABLE, Disk
from onward.errors import AlreadyDecided, OnwardError, UsageError
from onward.service.serialize import payload

APP = "onward.demo.agent:app"
PATIENCE, PATIENCE_WITH_A_MODEL = 60.0, 300.0
"""Seconds without a person after which the demo gives up. With the scripted model it takes about ten."""

SILENCES = 3
"""Attempts to reach the model, one after the other, after which the demo gives up."""

NOBODY = "There is nobody to ask. Do what you think is right, and say what you did."
"""The answer to a question where --yes was said."""


class NobodyDecided(OnwardError):
    """The agent asked, and nobody answered in time."""

    code = "waits_for_a_person"
    exit_status = WAITS_FOR_A_PERSON


async def demo_agent(args: Namespace) -> int:
    """`onward demo agent`."""
    screen = Screen(args)
    patience = seconds(args.patience, "--patience")
    _model_can_be_had()
    with terminable(), _folder(screen, keep=args.keep) as folder:
        db = args.db or f"sqlite:///{folder / 'onward.db'}"
        disk = Disk.make(folder)
        async with load(APP, db) as app:
            person = _Person(screen, app, db, yes=args.yes, patience=patience, own=args.db is None)
            proof = await _Play(screen, app, db, folder, disk, person).to_the_end()
            if screen.json:
                screen.document(proof.as_json())
            else:
                print_report(screen, proof)
                if args.keep and args.db is None:
                    screen.say((f"onward show {proof.task.task_id[-8:]} --db {shlex.quote(db)}", "dim"))
    return 0 if proof.holds else 1


def _model_can_be_had() -> None:
    name = real_model(os.environ)
    if name and importlib.util.find_spec("openai") is None:
        raise UsageError(
            f"the model {name} is spoken to with an extra that is not installed: pip install 'onward[openai]', "
            "or unset OPENAI_API_KEY and OPENAI_BASE_URL for the scripted model"
        )


@contextlib.contextmanager
def _folder(screen: Screen, *, keep: bool) -> Iterator[Path]:
    """A folder of its own, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="onward-demo-")).resolve()
    try:
        yield folder
    finally:
        if keep:
            screen.aside((f"kept: {folder} (the disk, its ledger, the database and what the workers said)", "dim"))
        else:
            shutil.rmtree(folder, ignore_errors=True)


class _Play:
    """Three workers, one agent, two kills."""

    def __init__(self, screen: Screen, app: Onward, db: str, folder: Path, disk: Disk, person: _Person) -> None:
        self._app, self._disk, self._person = app, disk, person
        self._board = person.board = AgentBoard(screen)
        self._queue = folder.name  # whoever else plays on this database has another disk
        self._crew = Crew(
            APP, db, folder, self._board.started, queue=self._queue, environment={FOLDER_VARIABLE: str(folder)}
        )
        self._patience = PATIENCE_WITH_A_MODEL if real_model(os.environ) else PATIENCE
        self._moments: list[Moment] = []
        self._told = self._silences = 0

    async def to_the_end(self) -> AgentProof:
        """Play, and find out what can be proven."""
        before = self._disk.digests()
        with self._crew.cleared_away():
            handle = await self._app.submit(TASK, GOAL, queue=self._queue)
            async with self._nothing_left(handle.id):
                disk = f"{self._disk.root}, with {len(before)} real files"
                facts = {"model": model_words(os.environ), "disk": disk, "task": handle.id}
                with self._board.shown(GOAL, facts):
                    task = await self._play(handle.id)
        if task.state is not State.COMPLETED:
            raise DemoFailed(_why(task, await journal(self._app.service, task.task_id)))
        return AgentProof(
            task,
            await journal(self._app.service, task.task_id),
            self._disk.ledger.lines(),
            self._moments,
            before,
            self._disk.digests(),
            real_model(os.environ) or SCRIPTED,
        )

    async def _play(self, task_id: str) -> Task:
        self._crew.start()
        until = time.monotonic() + self._patience
        while not (task := await self._app.get(task_id)).ended:
            self._crew.must_live()
            await self._tell_news(task_id)
            if task.reason in ASKS_A_PERSON:
                asked = time.monotonic()
                await self._ask_a_person(task)
                until += time.monotonic() - asked
            elif self._has_deleted() and not any(not moment.waiting for moment in self._moments):
                await self._kill(task_id, "the files are gone, the journal does not know", waiting=False)
                self._crew.start()
            elif time.monotonic() > until:
                raise DemoFailed(f"the demo did not end within {self._patience:g} s; {self._crew.last_words()}")
            await asyncio.sleep(0.02)
        await self._tell_news(task_id)
        return task

    async def _ask_a_person(self, task: Task) -> None:
        """The first time, nobody but the database knows of the question by then."""
        asks = [ask for ask in await self._app.asks() if ask.task_id == task.task_id]
        if not asks:
            return
        for ask in asks:
            self._board.wanted(ask)
            if ask.kind == "approval" and not self._moments:
                await self._kill(task.task_id, "while the task waits; the question is in the database", waiting=True)
            await self._person.see_to(ask)
        if not self._crew.working:
            self._crew.start()

    async def _kill(self, task_id: str, words: str, *, waiting: bool) -> None:
        kill = self._crew.kill()
        records = await journal(self._app.service, task_id)
        recorded = any(record.kind == STEP_DONE and step_name(record.key) == delete_logs.name for record in records)
        deleted = sum(line["what"] == "deleted" for line in self._disk.ledger.lines())
        self._moments.append(Moment(kill, waiting, deleted, recorded))
        self._disk.ledger.write({"what": "killed", "waiting": waiting})
        self._board.killed(words)

    def _has_deleted(self) -> bool:
        return any(line["what"] == "done" for line in self._disk.ledger.lines())

    async def _tell_news(self, task_id: str) -> None:
        for record in await self._app.service.journal(task_id, self._told):
            self._told = record.seq
            self._board.record(record, await self._message(task_id, record))
            self._listen(record)

    def _listen(self, record: Record) -> None:
        """A model that cannot be reached is asked for half a minute; whoever watches wants to know sooner."""
        if model_call(record) is not None:
            self._silences = 0
        elif record.kind == STEP_RETRY and _error(record).get("type") == ModelUnavailable.__name__:
            self._silences += 1
            if self._silences == SILENCES:
                advice = "; check OPENAI_BASE_URL and the network"
                raise DemoFailed(_sentence(_error(record).get("message"), advice))

    async def _message(self, task_id: str, record: Record) -> dict[str, object]:
        """What the model, or a tool, said."""
        if record.kind != STEP_DONE:
            return {}
        result = model_call(record) or (payload(record) or {}).get("result")
        name = result.get("id") if isinstance(result, dict) else None
        found = await self._app.service.contents(task_id, [name]) if isinstance(name, str) else {}
        return parsed(found.get(name or ""))

    @contextlib.asynccontextmanager
    async def _nothing_left(self, task_id: str) -> AsyncIterator[None]:
        """A task that is not played to its end has no disk any more; nobody shall go on with it."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OnwardError):
                await self._app.cancel(task_id)
            raise


def _why(task: Task, records: list[Record]) -> str:
    """Why the agent did not come to an end."""
    failed = [record for record in records if record.kind == STEP_FAILED and step_name(record.key) == "model"]
    error = _error(failed[-1]) if failed else task.error or {}
    return _sentence(error.get("message") or task.state)


def _error(record: Record) -> dict[str, object]:
    found = (payload(record) or {}).get("error")
    return found if isinstance(found, dict) else {}


def _sentence(why: object, advice: str = "") -> str:
    """What went wrong, and what to do about it."""
    said = f"the agent could not go on: {str(why).rstrip('.')}{advice}"
    if not real_model(os.environ):
        return said
    return f"{said}; without OPENAI_API_KEY and OPENAI_BASE_URL the demo uses a scripted model"


# ── people ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Person:
    """Whoever decides: --yes, somebody at this terminal, or somebody at another one."""

    board: AgentBoard

    def __init__(self, screen: Screen, app: Onward, db: str, *, yes: bool, patience: float, own: bool) -> None:
        self._screen, self._app, self._db, self._own = screen, app, db, own
        self._yes, self._patience = yes, patience
        self._here = sys.stdin.isatty() and not screen.json

    async def see_to(self, ask: Ask) -> None:
        """Until it is decided, by whomever."""
        with contextlib.suppress(AlreadyDecided):
            if self._yes:
                await self._say(ask, "y" if ask.kind == "approval" else NOBODY, "demo --yes")
            elif self._here:
                await self._asked_here(ask)
            else:
                await self._asked_elsewhere(ask)

    async def _say(self, ask: Ask, text: str, by: str) -> None:
        if ask.kind == "question":
            await self._app.answer(ask.id, text)
            return
        yes = text.lower() in {"y", "yes"}
        reason = "" if yes else "a person said no"
        await self._app.decide(ask.id, "approve" if yes else "deny", reason=reason, by=by)

    async def _asked_here(self, ask: Ask) -> None:
        with self.board.paused():
            while True:
                prompt = "  Allow it? [y/n] " if ask.kind == "approval" else "  Your answer: "
                self._screen.out.print(Text(prompt, "bold"), end="")
                self._screen.out.file.flush()
                text = await self._typed(ask)
                if text is None:  # somebody else was quicker
                    self._screen.say()
                    return
                if text and (ask.kind == "question" or text.lower() in {"y", "yes", "n", "no"}):
                    await self._say(ask, text, "demo prompt")
                    return

    async def _typed(self, ask: Ask) -> str | None:
        """A line from the terminal (Ctrl-D is a no); None when the answer came from elsewhere."""
        loop, line = asyncio.get_running_loop(), asyncio.Event()
        fd = sys.stdin.fileno()
        loop.add_reader(fd, line.set)
        try:
            while not line.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(line.wait(), 0.5)
                if not line.is_set() and not await self._open(ask):
                    return None
        finally:
            loop.remove_reader(fd)
        text = sys.stdin.readline()
        return text.strip() if text else "n"

    async def _open(self, ask: Ask) -> bool:
        return ask.id in {one.id for one in await self._app.asks()}

    async def _asked_elsewhere(self, ask: Ask) -> None:
        verbs = {"approval": "approve", "question": "answer"}
        db = f" --db {shlex.quote(self._db)}" if self._own else " --db URL"
        text = " TEXT" if ask.kind == "question" else ""
        command = f"onward {verbs[ask.kind]} {door.short_ask(ask.id)}{text}{db}"
        how = "(or deny; or start the demo with --yes)" if ask.kind == "approval" else "(or start the demo with --yes)"
        self._screen.err.print(
            f"  In another terminal, within {span(self._patience)}: {safe(command)}  {how}", soft_wrap=True
        )
        end = time.monotonic() + self._patience
        while await self._open(ask):
            if time.monotonic() > end:
                raise NobodyDecided(
                    f"nobody said yes or no within {span(self._patience)}, so the agent was stopped; "
                    "start it in a terminal, or with --yes"
                )
            await asyncio.sleep(0.1)
