"""How the demo looks: a board of ten steps while it plays, the proof when it is over."""

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

from onward.cli.demo.deploy_proof import Proof
from onward.cli.output.screen import Part, Screen, indented, print_story, sign
from onward.cli.output.text import span
from onward.cli.output.timeline import Mark, Story
from onward.core.record import PROGRESS, SHIFT, STEP_DONE, Record
from onward.demo.deploy import FATAL_STEP, STEPS
from onward.service.serialize import payload


class Board:
    """The steps, who does them, and what happens to the workers. Moves on a terminal; is a list of lines elsewhere."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._done: dict[str, tuple[float, int]] = {}
        self._running: tuple[str, float] | None = None
        self._news: list[Text] = []
        self._workers = 0
        self._shifts = 0
        self._spinner = Spinner("dots", style="cyan")
        self._over = False

    @contextlib.contextmanager
    def shown(self, task_id: str) -> Iterator[None]:
        """While it plays."""
        self._say(
            ("Onward demo  ", "bold"), ("a deploy of ten steps, and a worker that is killed in the middle", "dim")
        )
        self._say((f"task {task_id} on a database of its own", "dim"))
        if not self._screen.live:
            yield
            return
        with Live(get_renderable=self._picture, console=self._screen.out, refresh_per_second=12):
            yield
            self._over = True

    def started(self, number: int, pid: int) -> None:
        """A worker process was started."""
        self._workers = number
        self._tell(Mark.BEGIN, f"worker {number} started", f"pid {pid}")

    def killed(self) -> None:
        """The worker was killed."""
        self._running = None
        self._tell(
            Mark.CRASH,
            f"worker {self._workers} killed with -9",
            f"in step {_number(FATAL_STEP)}, after its effect, before its record",
        )

    def record(self, record: Record) -> None:
        """The journal has one more."""
        said = payload(record) or {}
        if record.kind == SHIFT:
            self._shifts += 1
            if self._shifts > 1:
                self._tell(
                    Mark.BEGIN, f"worker {self._workers} goes on from the journal", "finished steps are not run again"
                )
        elif record.kind == PROGRESS:
            self._running = (said["message"], time.monotonic())
        elif record.kind == STEP_DONE:
            self._running = None
            self._done[record.key] = (said["ms"] / 1000, self._shifts)
            if not self._screen.live:
                self._line(record.key)

    # ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _say(self, *parts: Part) -> None:
        if not self._screen.json:
            self._screen.say(*parts)

    def _tell(self, mark: Mark, text: str, detail: str) -> None:
        shown, style = sign(self._screen.out, mark)
        line = Text.assemble((f"{shown} {text}", style), (f"  {detail}", "dim"))
        if self._screen.live:
            self._news.append(line)
        else:
            self._say(line)

    def _line(self, step: str) -> None:
        took, shift = self._done[step]
        shown, style = sign(self._screen.out, Mark.DONE)
        self._say("  ", (shown, style), f" {_number(step):>2}  {step:<20} {span(took)}", (f"  worker {shift}", "dim"))

    # ── the picture ──────────────────────────────────────────────────────────────────────────────────────────────

    def _picture(self) -> Any:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=2, justify="right", style="dim")
        grid.add_column(width=1)
        grid.add_column(min_width=20)
        grid.add_column(justify="right", min_width=7, style="dim")
        grid.add_column(style="dim")
        for name, _, _ in STEPS:
            grid.add_row(str(_number(name)), *self._row(name))
        return Group(Text(), indented(grid), Text(), *(indented(line) for line in self._news))

    def _row(self, name: str) -> tuple[Any, ...]:
        if name in self._done:
            took, shift = self._done[name]
            shown, style = sign(self._screen.out, Mark.DONE)
            by = Text(f"worker {shift}", style="dim" if shift == 1 else "cyan")
            return Text(shown, style), Text(name), span(took), by
        if self._running is not None and self._running[0] == name and not self._over:
            self._spinner.update(text="")
            return (
                self._spinner,
                Text(name, "bold cyan"),
                span(time.monotonic() - self._running[1]),
                f"worker {self._workers}",
            )
        if name == FATAL_STEP and self._workers and any("killed" in line.plain for line in self._news):
            shown, style = sign(self._screen.out, Mark.CRASH)
            return Text(shown, style), Text(name, "red"), "", Text("killed", "red")
        return Text("·", "dim"), Text(name, "dim"), "", ""


def print_proof(screen: Screen, proof: Proof) -> None:
    """The counts, the claims and the journal."""
    screen.say()
    screen.say(("The cloud's ledger", "bold"))
    screen.block(indented(_counts(proof)))
    screen.say()
    screen.say(("The journal", "bold"))
    _print_journal(screen, proof)
    screen.say()
    screen.say(("The proof", "bold"))
    for sentence, true in proof.claims:
        shown, style = sign(screen.out, Mark.DONE if true else Mark.FAILED)
        screen.say("  ", (shown, style), "  ", (sentence, "" if true else "red"))


def _counts(proof: Proof) -> Table:
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


def _print_journal(screen: Screen, proof: Proof) -> None:
    story = Story()
    lines = [line for record in proof.records for line in story.tell(record) if line.mark is not Mark.PROGRESS]
    print_story(screen.out, lines, story.began or 0.0)


def print_ending(screen: Screen, proof: Proof) -> None:
    """One sentence to take along."""
    screen.say()
    if proof.holds:
        screen.say(
            ("Onward. ", "bold green"),
            f"Killed in step {_number(FATAL_STEP)} of {len(STEPS)}, on again {span(proof.resumed_after)} later, every effect exactly once.",
        )
    else:
        screen.say(("The proof does not hold: please report this, with the lines above.", "bold red"))


def _number(step: str) -> int:
    return 1 + [name for name, _, _ in STEPS].index(step)
