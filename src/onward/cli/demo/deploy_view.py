"""The view of the deploy demo: a board of ten steps while it plays, the report when it is over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from onward.cli.demo.board import Board, ending_text, print_sections
from onward.cli.demo.deploy_proof import DeployProof
from onward.cli.output.screen import Screen, indented, print_lines, sign
from onward.cli.output.text import span
from onward.cli.output.timeline import LineRenderer, Mark
from onward.core.journal.reader import fields
from onward.core.record import PROGRESS, SHIFT, STEP_DONE, Record
from onward.demo.deploy import FATAL_STEP, STEPS


class DeployBoard(Board):
    """The steps with their workers, and the events. A terminal shows them as a table that is drawn again and again."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._done: dict[str, tuple[float, int]] = {}
        """Duration and shift of each finished step."""
        self._running: tuple[str, float] | None = None
        self._events: list[Text] = []
        self._shifts = 0
        self._killed = self._over = False
        self._spinner = Spinner("dots", style="cyan")

    @contextlib.contextmanager
    def shown(self, task_id: str) -> Iterator[None]:
        """The block in which the demo plays."""
        self.say(("Onward demo  ", "bold"), ("a deploy of ten steps, and a worker that is killed in the middle", "dim"))
        self.say((f"task {task_id} on a database of its own", "dim"))
        if not self._screen.live:
            yield
            return
        with Live(get_renderable=self._picture, console=self._screen.out, refresh_per_second=12):
            yield
            self._over = True

    def worker_killed(self) -> None:
        """The worker was killed in the middle of the fatal step."""
        self._running, self._killed = None, True
        self.killed(f"in step {_number(FATAL_STEP)}, after its effect, before its record")

    def record(self, record: Record) -> None:
        """Show one more record of the journal."""
        if record.kind == SHIFT:
            self._shifts += 1
            if self._shifts > 1:
                self.continues("finished steps are not run again")
        elif record.kind == PROGRESS:
            self._running = (fields(record)["message"], time.monotonic())
        elif record.kind == STEP_DONE:
            self._running = None
            self._done[record.key] = (fields(record)["ms"] / 1000, self._shifts)
            if not self._screen.live:
                self._print_step(record.key)

    def _print_event(self, line: Text) -> None:
        if self._screen.live:
            self._events.append(line)
        else:
            super()._print_event(line)

    def _print_step(self, step: str) -> None:
        took, shift = self._done[step]
        shown, style = sign(self._screen.out, Mark.DONE)
        self.say("  ", (shown, style), f" {_number(step):>2}  {step:<20} {span(took)}", (f"  worker {shift}", "dim"))

    # ── the table ────────────────────────────────────────────────────────────────────────────────────────────────

    def _picture(self) -> Any:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=2, justify="right", style="dim")
        grid.add_column(width=1)
        grid.add_column(min_width=20)
        grid.add_column(justify="right", min_width=7, style="dim")
        grid.add_column(style="dim")
        for name, _, _ in STEPS:
            grid.add_row(str(_number(name)), *self._row(name))
        return Group(Text(), indented(grid), Text(), *(indented(line) for line in self._events))

    def _row(self, name: str) -> tuple[Any, ...]:
        if name in self._done:
            took, shift = self._done[name]
            shown, style = sign(self._screen.out, Mark.DONE)
            by = Text(f"worker {shift}", style="dim" if shift == 1 else "cyan")
            return Text(shown, style), Text(name), span(took), by
        if self._running is not None and self._running[0] == name and not self._over:
            self._spinner.update(text="")
            took = time.monotonic() - self._running[1]
            return self._spinner, Text(name, "bold cyan"), span(took), f"worker {self._worker}"
        if name == FATAL_STEP and self._killed:
            shown, style = sign(self._screen.out, Mark.CRASH)
            return Text(shown, style), Text(name, "red"), "", Text("killed", "red")
        return Text("·", "dim"), Text(name, "dim"), "", ""


def print_report(screen: Screen, proof: DeployProof) -> None:
    """Print the counts, the journal, the claims, and a last sentence."""
    summary = (
        f"Killed in step {_number(FATAL_STEP)} of {len(STEPS)}, on again {span(proof.resumed_after)} later, "
        "every effect exactly once."
    )
    sections = [
        ("The cloud's ledger", lambda: screen.block(indented(_counts(proof)))),
        ("The journal", lambda: _print_journal(screen, proof)),
    ]
    print_sections(screen, sections, proof, ending_text(proof, summary))


def _counts(proof: DeployProof) -> Table:
    grid = Table.grid(padding=(0, 2))
    for justify in ("right", "left", "right", "right", "left"):
        grid.add_column(justify=justify, no_wrap=True)
    grid.add_row(*(Text(header, "dim") for header in ("", "step", "calls", "effects", "")))
    for number, count in enumerate(proof.counts, 1):
        twice = count.calls > 1
        grid.add_row(
            Text(str(number), "dim"),
            Text(count.step, "bold" if twice else ""),
            Text(str(count.calls), "yellow" if twice else ""),
            Text(str(count.effects), "green" if count.effects == 1 else "red"),
            Text("same key: “already done”" if twice and count.keys == 1 else "", "dim"),
        )
    return grid


def _print_journal(screen: Screen, proof: DeployProof) -> None:
    renderer = LineRenderer()
    lines = [line for record in proof.records for line in renderer.render(record) if line.mark is not Mark.PROGRESS]
    print_lines(screen.out, lines, renderer.began or 0.0)


def _number(step: str) -> int:
    return 1 + [name for name, _, _ in STEPS].index(step)
