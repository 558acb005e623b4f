"""How the demo of the agent looks: what it says and does, line by line, and what happens to its workers; then the proof."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.live import Live
from rich.padding import Padding
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from onward.cli.demo.agent_proof import AgentProof
from onward.cli.output.screen import Part, Screen, indented, sign, story_line
from onward.cli.output.text import count, readable, safe, short
from onward.cli.output.timeline import Mark, Story
from onward.core import record as r
from onward.core.journal.open_waits import split_key
from onward.core.journal.turns import model_call
from onward.core.views import Ask
from onward.demo.disk import megabytes

TOLD = frozenset({r.STEP_RETRY, r.STEP_FAILED, r.DOUBTED, r.RETRY, r.PARKED, r.QUARANTINED, r.CANCELLED})
"""What usually does not happen here, told as any other journal is."""

PLAN = "update_plan"
_LABEL = 7
_ROOM = 15
"""Columns for who speaks, and for the name of a tool."""


class AgentBoard:
    """What the agent does, as it does it. On a terminal the last line moves; elsewhere there are only lines."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._story = Story()
        self._worker = self._last = 0
        self._live: Live | None = None
        self._spinner = Spinner("dots", style="cyan")

    @contextlib.contextmanager
    def shown(self, goal: str, facts: Mapping[str, str]) -> Iterator[None]:
        """While it plays."""
        self.say(("Onward demo  ", "bold"), ("an agent with a real disk, and workers that are killed", "dim"))
        self._print(self._row("goal", Text(goal, "bold")))
        for name, text in facts.items():
            self._print(self._row(name, Text(text, "dim")))
        self.say()
        if not self._screen.live:
            yield
            return
        self._live = Live(self._spinner, console=self._screen.out, refresh_per_second=12, transient=True)
        self._busy("a worker starts")
        with self._live:
            yield

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While somebody types, nothing moves."""
        if self._live is not None:
            self._live.stop()
        yield
        if self._live is not None:
            self._live.start(refresh=True)

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def started(self, number: int, pid: int) -> None:
        """A worker process was started."""
        self._worker = number
        self._tell(Mark.BEGIN, f"worker {number} started", f"pid {pid}")
        self._busy(f"worker {number} starts")

    def killed(self, where: str) -> None:
        """The worker was killed."""
        self._tell(Mark.CRASH, f"worker {self._worker} killed with -9", where)
        self._busy("nobody works")

    # ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────

    def record(self, record: r.Record, message: Mapping[str, Any] | None) -> None:
        """The journal has one more; `message` is what was said, where it is about that."""
        lines = self._story.tell(record)
        if record.kind == r.SHIFT:
            self._shift()
        elif model_call(record) is not None:
            self._model(message or {})
        elif record.kind == r.STEP_DONE:
            self._tool(step_name(record.key), message or {})
        elif record.kind == r.MESSAGE:
            for line in lines:
                self._tell(Mark.PERSON, line.text, line.detail)
        elif record.kind in TOLD:
            for line in lines:
                self._print(story_line(self._screen.out, line, self._story.began or line.at))

    def _shift(self) -> None:
        if 0 < self._last < self._worker:
            self._tell(Mark.BEGIN, f"worker {self._worker} goes on from the journal", "no answer is asked for again")
        self._last = self._worker
        self._busy("the model thinks")

    def _model(self, message: Mapping[str, Any]) -> None:
        calls = [one["function"] for one in message.get("tool_calls") or ()]
        text = str(message.get("content") or "").strip()
        if text and calls:  # without calls it is the report, which has a place of its own
            self._print(self._row("model", Text(safe(text))))
        for call in calls:
            self._plan(call)
        self._busy(", ".join(safe(call["name"]) for call in calls) or "the report is written")

    def _plan(self, call: Mapping[str, Any]) -> None:
        plan = parsed(call["arguments"]).get("plan") if call["name"] == PLAN else None
        if isinstance(plan, list):
            self._print(self._row("plan", Text(safe("; ".join(map(str, plan))), "dim")))

    def _tool(self, name: str, message: Mapping[str, Any]) -> None:
        if name == PLAN:  # told when it was asked for
            return
        lines = str(message.get("content") or "").strip().splitlines() or [""]
        more = f" (+{count(len(lines) - 1, 'line')})" if len(lines) > 1 else ""
        mark, style = sign(self._screen.out, Mark.DONE)
        text = Text.assemble("  ", (mark, style), f" {safe(name):<{_ROOM}}", (safe(lines[0].strip()), "dim"))
        if self._screen.out.is_terminal:
            text.truncate(self._screen.out.width - 1 - len(more), overflow="ellipsis")
        self._print(text.append(more, "dim"))
        self._busy("the model thinks")

    # ── people ───────────────────────────────────────────────────────────────────────────────────────────────────

    def wanted(self, ask: Ask) -> None:
        """What somebody has to decide or to answer, whole."""
        if ask.kind == "question":
            self._tell(Mark.PERSON, f"it asks: {safe(ask.text)}", "")
            return
        data = ask.data if isinstance(ask.data, dict) else {}
        arguments = data.get("arguments")
        self._tell(Mark.PERSON, f"it asks for approval: {safe(data.get('tool') or ask.text)}", safe(ask.risk or ""))
        if isinstance(arguments, dict):
            for name, value in arguments.items():
                for number, one in enumerate(value if isinstance(value, list) else [value]):
                    text = one if isinstance(one, str) else readable(one)
                    self.say(f"    {safe(name) if number == 0 else '':<{_LABEL}} ", safe(text))

    def say(self, *parts: Part) -> None:
        """A line."""
        self._print(Text.assemble(*parts))

    # ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _tell(self, mark: Mark, text: str, detail: str) -> None:
        shown, style = sign(self._screen.out, mark)
        self._print(Text.assemble((f"{shown} {text}", style), (f"  {detail}" if detail else "", "dim")))

    def _row(self, label: str, text: Text) -> Any:
        """Who speaks, and what; a long text stays in its column where there are columns."""
        if not self._screen.out.is_terminal:
            return Text.assemble("  ", f"{label:<{_LABEL}}", text)
        grid = Table.grid()
        grid.add_column(style="cyan", no_wrap=True, min_width=_LABEL)
        grid.add_column(overflow="fold")
        grid.add_row(label, text)
        return Padding(grid, (0, 1, 0, 2))

    def _print(self, renderable: Any) -> None:
        if not self._screen.json:
            self._screen.out.print(renderable, soft_wrap=not self._screen.out.is_terminal)

    def _busy(self, text: str) -> None:
        self._spinner.update(text=Text(short(text, min(60, self._screen.out.width - 4)), "dim"))


def print_report(screen: Screen, proof: AgentProof) -> None:
    """What the agent reports, what was counted, and what that proves."""
    screen.say()
    screen.say(("The report", "bold"))
    screen.block(indented(Text(safe(proof.task.result))))
    screen.say()
    if proof.deletions:
        screen.say(("The ledger of the disk", "bold"))
        screen.block(indented(_counts(proof)))
        screen.say()
    screen.say(("The proof", "bold"))
    screen.block(indented(_claims(screen, proof)))
    screen.say()
    print_ending(screen, proof)


def _counts(proof: AgentProof) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(Text("file", "dim"), Text("deleted", "dim"))
    for path, times in sorted(proof.deletions.items()):
        grid.add_row(Text(safe(path)), Text(_times(times), "green" if times == 1 else "red"))
    return grid


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _claims(screen: Screen, proof: AgentProof) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for sentence, true in proof.claims:
        grid.add_row(Text(*sign(screen.out, Mark.DONE if true else Mark.FAILED)), Text(sentence, "" if true else "red"))
    return grid


def print_ending(screen: Screen, proof: AgentProof) -> None:
    """One sentence to take along."""
    if not proof.moments:
        screen.say(
            ("The model asked for no deletion, so nobody was killed. Run it again, or try another model.", "yellow")
        )
    elif not proof.holds:
        screen.say(("The proof does not hold: please report this, with the lines above.", "bold red"))
    else:
        killed = {1: "Killed once", 2: "Killed twice"}.get(len(proof.moments), f"Killed {len(proof.moments)} times")
        done = f"{megabytes(proof.freed)} freed, every file deleted once" if proof.deletions else "a no is a no"
        turns = f"{count(len(proof.turns), 'answer')} paid for once"
        tokens = "" if proof.tokens is None else f" ({proof.tokens:,} tokens)"
        screen.block(Text.assemble(("Onward. ", "bold green"), f"{killed}; {done}; {turns}{tokens}."))


def step_name(key: str) -> str:
    """The name of a step, without its place and its number."""
    return split_key(key)[1].partition("#")[0]


def parsed(data: bytes | str | None) -> dict[str, Any]:
    """An object that a task or a model wrote, as far as it can be read."""
    try:
        found = json.loads(data or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
