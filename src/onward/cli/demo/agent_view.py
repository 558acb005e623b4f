"""The view of the agent demo: a line for each message, tool call and worker event while it plays, then the report."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onward.cli.demo.agent_proof import AgentProof
from onward.cli.demo.view import Board, Section, ending_text
from onward.cli.output.screen import Screen, format_line, sign
from onward.cli.output.timeline import LineRenderer, Mark
from onward.core import record as r
from onward.core.journal.reader import step_name
from onward.core.journal.turns import model_call
from onward.core.text import count, readable, safe, short
from onward.core.views import Ask
from onward.demo.agent import GOAL
from onward.demo.disk import megabytes

SHOWN_KINDS = frozenset({r.STEP_RETRY, r.STEP_FAILED, r.DOUBTED, r.RETRY, r.PARKED, r.QUARANTINED, r.CANCELLED})
"""Records that are rare here. They are shown as in any other journal."""

PLAN_TOOL = "update_plan"
_LABEL_WIDTH = 7
_TOOL_WIDTH = 15


class AgentBoard(Board[AgentProof]):
    """Shows the work of the agent. On a terminal the last line moves."""

    def __init__(self, screen: Screen, facts: Mapping[str, str]) -> None:
        super().__init__(screen)
        self._facts = facts
        self._lines = LineRenderer()
        self._last_worker = 0
        """The worker of the last shift."""
        self._live = Live(self._spinner, console=screen.out, refresh_per_second=12, transient=True)
        self._busy("a worker starts")

    def _introduce(self, task_id: str) -> None:
        self._say(("Onward demo  ", "bold"), ("an agent with a real disk, and workers that are killed", "dim"))
        self._print(self._row("goal", Text(GOAL, "bold")))
        for name, text in {**self._facts, "task": task_id}.items():
            self._print(self._row(name, Text(text, "dim")))
        self._say()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A block in which nothing moves, because the user types."""
        self._live.stop()
        yield
        if self._screen.live:
            self._live.start(refresh=True)

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def started(self, number: int, pid: int) -> None:
        """A worker process was started."""
        super().started(number, pid)
        self._busy(f"worker {number} starts")

    def killed(self, where: str) -> None:
        """The worker was killed."""
        super().killed(where)
        self._busy("no worker runs")

    # ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────

    def record(self, record: r.Record, message: Mapping[str, Any] | None) -> None:
        """Show one more record; `message` is that of the model or the tool, if the record is about one."""
        lines = self._lines.render(record)
        if record.kind == r.SHIFT:
            self._shift()
        elif model_call(record) is not None:
            self._model(message or {})
        elif record.kind == r.STEP_DONE:
            self._tool(step_name(record.key), message or {})
        elif record.kind == r.MESSAGE:
            for line in lines:
                self._event(Mark.PERSON, line.text, line.detail)
        elif record.kind in SHOWN_KINDS:
            for line in lines:
                self._print(format_line(self._screen.out, line, self._lines.began or line.at))

    def _shift(self) -> None:
        if 0 < self._last_worker < self._worker:
            self._continues("no answer is asked for again")
        self._last_worker = self._worker
        self._busy("the model thinks")

    def _model(self, message: Mapping[str, Any]) -> None:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        text = str(message.get("content") or "").strip()
        if text and calls:  # a message without calls is the report, which is printed at the end
            self._print(self._row("model", Text(safe(text))))
        for call in calls:
            self._plan(call)
        self._busy(", ".join(safe(call["name"]) for call in calls) or "the report is written")

    def _plan(self, call: Mapping[str, Any]) -> None:
        plan = parse_object(call["arguments"]).get("plan") if call["name"] == PLAN_TOOL else None
        if isinstance(plan, list):
            self._print(self._row("plan", Text(safe("; ".join(map(str, plan))), "dim")))

    def _tool(self, name: str, message: Mapping[str, Any]) -> None:
        if name == PLAN_TOOL:  # the plan was shown with the call
            return
        lines = str(message.get("content") or "").strip().splitlines() or [""]
        more = f" (+{count(len(lines) - 1, 'line')})" if len(lines) > 1 else ""
        mark, style = sign(self._screen.out, Mark.DONE)
        text = Text.assemble("  ", (mark, style), f" {safe(name):<{_TOOL_WIDTH}}", (safe(lines[0].strip()), "dim"))
        if self._screen.out.is_terminal:
            text.truncate(self._screen.out.width - 1 - len(more), overflow="ellipsis")
        self._print(text.append(more, "dim"))
        self._busy("the model thinks")

    # ── people ───────────────────────────────────────────────────────────────────────────────────────────────────

    def asked(self, ask: Ask) -> None:
        """Show the approval or question of the agent in full."""
        if ask.kind == "question":
            self._event(Mark.PERSON, f"it asks: {safe(ask.text)}", "")
            return
        data = ask.data if isinstance(ask.data, dict) else {}
        arguments = data.get("arguments")
        self._event(Mark.PERSON, f"it asks for approval: {safe(data.get('tool') or ask.text)}", safe(ask.risk or ""))
        if isinstance(arguments, dict):
            for name, value in arguments.items():
                for number, item in enumerate(value if isinstance(value, list) else [value]):
                    text = item if isinstance(item, str) else readable(item)
                    self._say(f"    {safe(name) if number == 0 else '':<{_LABEL_WIDTH}} ", safe(text))

    # ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _row(self, label: str, text: Text) -> Any:
        """A label and a text. On a terminal a long text stays in its column."""
        if not self._screen.out.is_terminal:
            return Text.assemble("  ", f"{label:<{_LABEL_WIDTH}}", text)
        grid = Table.grid()
        grid.add_column(style="cyan", no_wrap=True, min_width=_LABEL_WIDTH)
        grid.add_column(overflow="fold")
        grid.add_row(label, text)
        return Padding(grid, (0, 1, 0, 2))

    def _busy(self, text: str) -> None:
        self._spinner.update(text=Text(short(text, min(60, self._screen.out.width - 4)), "dim"))

    # ── the report ───────────────────────────────────────────────────────────────────────────────────────────────

    def _sections(self, proof: AgentProof) -> Sequence[Section]:
        report: Section = ("The report", lambda: self._block(Text(safe(proof.task.result))))
        ledger: Section = ("The ledger of the disk", lambda: self._block(_counts(proof)))
        return [report, ledger] if proof.deletions else [report]

    def _ending(self, proof: AgentProof) -> Text:
        if not proof.kills:
            text = "The model asked for no deletion, so no worker was killed. Run it again, or try another model."
            return Text(text, "yellow")
        killed = {1: "Killed once", 2: "Killed twice"}.get(len(proof.kills), f"Killed {len(proof.kills)} times")
        done = f"{megabytes(proof.freed)} freed, every file deleted once" if proof.deletions else "a no is a no"
        turns = f"{count(len(proof.turns), 'answer')} paid for once"
        tokens = "" if proof.tokens is None else f" ({proof.tokens:,} tokens)"
        return ending_text(proof, f"{killed}; {done}; {turns}{tokens}.")


def _counts(proof: AgentProof) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(Text("file", "dim"), Text("deleted", "dim"))
    for path, times in sorted(proof.deletions.items()):
        shown = "once" if times == 1 else f"{times} times"
        grid.add_row(Text(safe(path)), Text(shown, "green" if times == 1 else "red"))
    return grid


def parse_object(data: bytes | str | None) -> dict[str, Any]:
    """A JSON object that a task or a model wrote; empty if it is none."""
    try:
        value = json.loads(data or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
