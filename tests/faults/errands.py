"""Errands: an agent in the processes that a fault test kills, each task at a boundary that its goal names.

    goal        "Run errand e0017, killed at answer.saved 3."     the third time that this boundary is passed, and only once
    boundaries  before the model is asked, after it answered, around every commit (its answer, a tool's result, an
                announcement, a question, an answer, a checkpoint, the end), before and after a tool's effect

The model is scripted. It finds its place in the messages of the request, and notes each request whole, with how many of its
answers the journal had at that moment. Its last answer is a digest of all messages: a history that differs by a letter shows
in the task's result. Tools note that they start and end. The world notes each effect (`applied`), and drops an effect whose
key it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import signal
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import psycopg

from onward import Onward
from onward.agent import loop
from onward.agent.model import Request
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.core import crash, wire
from onward.core import record as r
from rig.ledger import Ledger
from tests.faults import planted

BOUNDARIES = (
    *("model.before", "model.after", "answer.saving", "answer.saved"),
    *("effect.announced", "tool.before", "tool.after", "result.saving", "result.saved", "gather.between"),
    *("ask.saving", "ask.saved", "waited.saving", "waited.saved"),
    *("checkpoint.saving", "checkpoint.saved", "end.saving", "end.saved"),
)
CHECKPOINT_EVERY = 3
"""Turns between two checkpoints: as few as give several in one errand."""

EFFECTS = ("deposit a", "deposit b", "pay a", "pay b", "send", "wipe")
"""The effects of one errand on the world, each once."""

ANSWER = "the blue one"
PAID = "7 euros are paid"
GATHERED = {"update_plan": 2, "record_fact": 2, "look": 3}
_GOAL = re.compile(r"Run errand (e\d+), killed at (\S+) (\d+)\.")


def goal(number: int, boundary: str = "nowhere", passing: int = 0) -> str:
    return f"Run errand e{number:04}, killed at {boundary} {passing}."


def read_goal(text: str) -> tuple[str, str, int]:
    """The errand, and where it is to be killed."""
    match = _GOAL.search(text)
    assert match, text
    return match[1], match[2], int(match[3])


# ── the script of the model ──────────────────────────────────────────────────────────────────────────────────────────


def script(errand: str) -> list[Any]:
    def read_more(request: Request) -> Any:
        name = str(request.conversation[-1]["content"]).partition("read_artifact('")[2].partition("'")[0]
        return [("read_artifact", {"artifact_id": name, "search": "line 900 "})]

    return [
        [
            ("update_plan", {"plan": ["look", "pay"]}),
            ("record_fact", {"key": "city", "value": "Ulm", "source": "user"}),
        ],
        [("look", {"place": "door"})],
        [("look", {"place": place, "ms": ms}) for place, ms in (("hall", 60), ("yard", 30), ("roof", 0))],
        [("deposit", {"effect": f"{errand} deposit a"})],
        [("pay", {"effect": f"{errand} pay a"})],
        [("send", {"effect": f"{errand} send"})],
        [("wipe", {"effect": f"{errand} wipe"})],
        [("dump", {})],
        read_more,
        [("broken", {}), ("no_such_tool", {})],
        [("ask_user", {"question": "Which one?"})],
        [
            ("look", {"place": "cellar"}),
            ("deposit", {"effect": f"{errand} deposit b"}),
            ("pay", {"effect": f"{errand} pay b"}),
        ],
        lambda request: digest(request.conversation, errand),
    ]


TURNS = len(script("e0000"))


def digest(messages: Sequence[Any], errand: str) -> str:
    """A digest of all messages, without the name of the errand."""
    history = json.dumps(messages[2:]).replace(errand, "e")
    history = re.sub(r"(read_artifact\('|artifact_id[\\\": ]+)\w+", r"\1", history)
    return f"done {hashlib.sha256(history.encode()).hexdigest()[:16]}"


# ── the kills ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Fate:
    """Counts over all processes how often each task passes each boundary, and kills the process where the goal says."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._goals: dict[str, tuple[str, str, int]] = {}
        self._branches: dict[tuple[str, str], int] = {}
        (home / "passed").mkdir(exist_ok=True)
        (home / "killed").mkdir(exist_ok=True)

    def learn(self, task: str, text: str) -> None:
        self._goals[task] = read_goal(text)

    def task_of(self, errand: str) -> str:
        return next(task for task, goal in self._goals.items() if goal[0] == errand)

    def passes(self, task: str, boundary: str) -> None:
        with (self._home / "passed" / f"{task} {boundary}").open("ab", buffering=0) as file:
            file.write(b".")
            count = file.tell()
        if self._goals[task][1:] != (boundary, count):
            return
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._home / "killed" / task, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)

    def commits(self, entries: Sequence[Any], moment: str) -> None:
        for task, _, _, kind, key, _, _ in entries:
            if task in self._goals:
                for boundary in self._boundaries(task, kind, key, moment):
                    self.passes(task, boundary)

    def _boundaries(self, task: str, kind: str, key: str, moment: str) -> Iterator[str]:
        name = key.rpartition("]")[2].partition("#")[0]
        match kind:
            case r.STEP_DONE | r.STEP_FAILED:
                yield f"{'answer' if name == 'model' else 'result'}.{moment}"
                gather = re.match(r"\[(.*gather[^.\]]*)\.\d+\]", key)
                if gather and moment == "saved":
                    done = self._branches.get((task, gather[1]), 0) + 1
                    self._branches[task, gather[1]] = done
                    if done < GATHERED[name]:
                        yield "gather.between"
            case r.ANNOUNCED if moment == "saved":
                yield "effect.announced"
            case r.APPROVAL | r.QUESTION:
                yield f"ask.{moment}"
            case r.WAITED:
                yield f"waited.{moment}"
            case r.CHECKPOINT:
                yield f"checkpoint.{moment}"
            case r.COMPLETED:
                yield f"end.{moment}"


def watch(app: Onward, fate: Fate) -> None:
    """Reads each task's goal at its claim, and the entries of each commit for the crash points around it."""
    store: Any = app.store
    claim, save = store.claim, store.save
    entries: Sequence[Any] = ()

    async def claimed(*args: Any, **options: Any) -> Any:
        tasks = await claim(*args, **options)
        for task in tasks:
            fate.learn(task.id, str(wire.decode(task.input)))
        return tasks

    async def saved(worker: str, batch: Any) -> Any:
        nonlocal entries
        entries = batch.entries
        return await save(worker, batch)

    def point(name: str) -> None:
        if name in {"save.before", "save.after"}:
            fate.commits(entries, "saving" if name == "save.before" else "saved")

    store.claim, store.save = claimed, saved
    crash.install(point)


# ── the agent ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Errands(ScriptedModel):
    """The model: notes each request, and how many of its answers the journal had by then."""

    SQL = "SELECT count(*) FROM onward_journal WHERE kind = 'step.completed' AND key LIKE '%model%' AND task_id = "

    def __init__(self, url: str, book: Ledger, fate: Fate) -> None:
        super().__init__([], name="errands")
        self._url, self._book, self._fate = url, book, fate
        self._connection: Any = None

    async def ask(self, request: Request, emit: Any) -> Any:
        errand, _, _ = read_goal(request.state)
        task = self._fate.task_of(errand)
        turn = sum(message["role"] == "assistant" for message in request.messages)
        self._fate.passes(task, "model.before")
        self._book.write("asked", task, turn, self._recorded(task), self._kept(request.messages))
        reply = await ScriptedModel(script(errand)).ask(request, emit)
        self._fate.passes(task, "model.after")
        return reply

    def _kept(self, messages: Sequence[Any]) -> str:
        """Writes a request to a file of its own: a kill from another thread could cut a long line of the ledger."""
        path = self._book.path.parent / f"request {uuid.uuid4().hex}"
        path.write_text(json.dumps(list(messages)))
        return path.name

    def _recorded(self, task: str) -> int:
        if self._connection is None:
            self._connection = (
                apsw.Connection(self._url.removeprefix("sqlite:///"))
                if self._url.startswith("sqlite")
                else psycopg.connect(self._url, autocommit=True)
            )
        return int(next(iter(self._connection.execute(f"{self.SQL}'{task}'")))[0])


class World:
    """The world outside, which the tools change."""

    def __init__(self, book: Ledger) -> None:
        self._book = book
        self._keys = book.path.parent / "keys"
        self._keys.mkdir(exist_ok=True)

    def apply(self, task: str, effect: str, key: str | None = None) -> None:
        """Applies the effect, unless its key was seen before."""
        with contextlib.suppress(FileExistsError):
            if key is not None:
                os.close(os.open(self._keys / key.replace("/", "|"), os.O_CREAT | os.O_EXCL))
            self._book.write("applied", task, effect)

    def happened(self, effect: str) -> bool:
        return any(line[0] == "applied" and line[2] == effect for line in self._book.read())


def tools(book: Ledger, world: World, fate: Fate) -> list[Any]:
    @contextlib.contextmanager
    def doing(ctx: Any, effect: str = "") -> Iterator[None]:
        step, shift = ctx.key.partition(":")[2], ctx._host.hold.shift
        book.write("start", ctx.task_id, step, shift, effect)
        fate.passes(ctx.task_id, "tool.before")
        yield
        fate.passes(ctx.task_id, "tool.after")
        book.write("end", ctx.task_id, step, shift, effect)

    @tool
    async def look(ctx: Any, place: str, ms: int = 0) -> str:
        """Look at a place."""
        with doing(ctx):
            await asyncio.sleep(ms / 1000)
        return f"the {place} is quiet"

    @tool(risk="external_action", idempotent=True)
    async def deposit(ctx: Any, effect: str) -> str:
        """Put money into the bank, which knows effect keys."""
        with doing(ctx, effect):
            world.apply(ctx.task_id, effect, ctx.key)
        return "deposited"

    @tool(risk="external_action")
    def pay(ctx: Any, effect: str) -> str:
        """Pay a receiver that knows no effect keys."""
        with doing(ctx, effect):
            world.apply(ctx.task_id, effect)
        return PAID

    async def was_sent(effect: str) -> Any:
        return "sent" if world.happened(effect) else None

    @tool(risk="external_action", reconcile=was_sent)
    async def send(ctx: Any, effect: str) -> str:
        """Send a letter; the post knows whether it did."""
        with doing(ctx, effect):
            world.apply(ctx.task_id, effect)
        return "sent"

    @tool(risk="write_local", idempotent=True)
    async def wipe(ctx: Any, effect: str) -> str:
        """Wipe the disk, after an approval."""
        with doing(ctx, effect):
            world.apply(ctx.task_id, effect, ctx.key)
        return "wiped"

    @tool
    def dump(ctx: Any) -> str:
        """Print a very long text."""
        with doing(ctx):
            return "\n".join(f"line {number} is like every other one" for number in range(3000))

    @tool(retry=1)
    async def broken(ctx: Any) -> str:
        """Out of order."""
        with doing(ctx):
            raise ValueError("out of order")

    return [look, deposit, pay, send, wipe, dump, broken]


def build(db: str, ledger: str, **settings: Any) -> tuple[Onward, Fate]:
    book = Ledger(Path(ledger))
    fate = Fate(book.path.parent)
    app = Onward(db, **settings)
    app.agent(
        "errand",
        model=Errands(db, book, fate),
        tools=tools(book, World(book), fate),
        approve=["write_local"],
        instructions="You run errands.",
    )
    return app, fate


def app_of(options: dict[str, Any], **settings: Any) -> Onward:
    """The app of a worker that may be killed."""
    assert loop.CHECKPOINT_EVERY_TURNS > CHECKPOINT_EVERY
    loop.CHECKPOINT_EVERY_TURNS = CHECKPOINT_EVERY
    planted.plant(options.get("fault", ""))
    app, fate = build(options["db"], options["ledger"], **settings)
    watch(app, fate)
    return app
