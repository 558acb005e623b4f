"""demo: a real worker is killed with -9 in the middle of a deploy, and another one goes on. Only the moment of the kill is chosen: the
ledger of the cloud shows when a step has had its effect and its record is not written yet."""

from __future__ import annotations

import dataclasses
import time
from argparse import Namespace
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from onward.cli.demo.proof import KILLED, Claim, Proof
from onward.cli.demo.runner import Demo, Stage, run_demo
from onward.cli.demo.view import Board, Section, ending_text
from onward.cli.demo.workers import DemoFailed
from onward.cli.output.screen import Screen, indented, print_lines, sign
from onward.cli.output.timeline import LineRenderer, Mark
from onward.core.journal.reader import fields
from onward.core.record import HANDED_BACK, PROGRESS, SHIFT, STEP_DONE, Record
from onward.core.task import State, Task
from onward.core.text import span
from onward.demo.deploy import FATAL_STEP, STEPS, TASK, Cloud

NAMES = [name for name, _, _ in STEPS]
FATAL_NUMBER = NAMES.index(FATAL_STEP) + 1


async def demo(args: Namespace) -> int:
    """`onward demo`."""
    screen = Screen(args)
    return await run_demo(args, screen, DeployDemo.target, lambda stage: DeployDemo(screen, stage))


# ── the proof ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True)
class StepCount:
    """The requests of one step in the ledger of the cloud."""

    step: str
    calls: int
    effects: int
    keys: int
    processes: int


@dataclasses.dataclass(frozen=True)
class DeployProof(Proof):
    """`made` is the number of things that the cloud has made."""

    made: int

    @cached_property
    def counts(self) -> list[StepCount]:
        """The counts of all steps."""
        return [self._count(name) for name in NAMES]

    def _count(self, step: str) -> StepCount:
        requests = [request for request in self.ledger if request["what"].startswith(step)]
        return StepCount(
            step,
            calls=len(requests),
            effects=sum(request["effect"] for request in requests),
            keys=len({request["key"] for request in requests}),
            processes=len({request["pid"] for request in requests}),
        )

    @cached_property
    def shifts(self) -> list[Record]:
        return [record for record in self.records if record.kind == SHIFT]

    @property
    def resumed_after(self) -> float:
        """Seconds from the kill to the claim of the next worker."""
        return self.shifts[-1].at - self.kills[0].at

    @cached_property
    def claims(self) -> list[Claim]:
        kill = self.kills[0]
        fatal = self._count(FATAL_STEP)
        done = [record.key for record in self.records if record.kind == STEP_DONE]
        others = [count for count in self.counts if count.step != FATAL_STEP]
        return [
            (f"the first worker was ended by signal 9 (exit status {kill.status})", kill.status == KILLED),
            (
                f"at that moment the effect of step {FATAL_NUMBER} was there and its record was not",
                list(kill.recorded) == NAMES[: FATAL_NUMBER - 1],
            ),
            (
                f"{span(self.resumed_after)} after the kill a second worker went on from the journal alone",
                len(self.shifts) == 2 and not any(record.kind == HANDED_BACK for record in self.records),
            ),
            (
                f"step {FATAL_NUMBER} was called twice, by two processes, with the same key",
                (fatal.calls, fatal.processes, fatal.keys) == (2, 2, 1),
            ),
            ("no other step was called again", all(count.calls == 1 for count in others)),
            (
                f"each of the {len(NAMES)} effects happened exactly once",
                all(count.effects == 1 for count in self.counts) and self.made == len(NAMES),
            ),
            (
                "the deploy is completed, with one record for each step",
                self.task.state is State.COMPLETED and done == NAMES,
            ),
        ]

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "steps": [dataclasses.asdict(count) for count in self.counts],
            "resumed_after_s": round(self.resumed_after, 3),
        }


# ── the play ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class DeployDemo(Demo[DeployProof]):
    """Two workers, one deploy, one kill."""

    target = "onward.demo.deploy:app"
    home = "database"
    board: DeployBoard

    def __init__(self, screen: Screen, stage: Stage) -> None:
        super().__init__(stage, DeployBoard(screen, self.home))
        folder = stage.folder / "cloud"
        self._cloud = Cloud(folder)
        self.request = TASK, {"service": "shop", "cloud": str(folder)}

    async def act(self, task: Task) -> float:
        if not self.kills and any(request["what"].startswith(FATAL_STEP) for request in self._cloud.ledger.lines()):
            await self.kill(task.task_id, f"in step {FATAL_NUMBER}, after its effect, before its record")
            self.workers.start()
        return 0.0

    async def show(self, _task_id: str, record: Record) -> None:
        self.board.record(record)

    def proof(self, task: Task, records: list[Record]) -> DeployProof:
        if not self.kills:
            raise DemoFailed(f"the deploy ended before its worker could be killed; {self.workers.log_tail()}")
        return DeployProof(task, records, self.kills, self._cloud.ledger.lines(), self._cloud.count())


class TemporalDemo(DeployDemo):
    """The same deploy on Temporal. Its journal is read by queries, which workers answer: the records at the kill are read at the end."""

    home = "Temporal server"
    timeout_s = 120.0

    async def kill(self, task_id: str, where: str, *, waiting: bool = False) -> None:  # noqa: ARG002 -- as in Demo
        self.kills.append(self.workers.kill()._replace(waiting=waiting))
        self.board.killed(where)

    def proof(self, task: Task, records: list[Record]) -> DeployProof:
        proof = super().proof(task, records)
        kills = [
            kill._replace(recorded=tuple(rec.key for rec in records if rec.kind == STEP_DONE and rec.at <= kill.at))
            for kill in self.kills
        ]
        return dataclasses.replace(proof, kills=kills)


# ── the view ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class DeployBoard(Board[DeployProof]):
    """The steps with their workers, and the events. A terminal shows them as a table that is drawn again and again."""

    def __init__(self, screen: Screen, home: str) -> None:
        super().__init__(screen)
        self._home = home
        self._done: dict[str, tuple[float, int]] = {}
        """Duration and shift of each finished step."""
        self._running: tuple[str, float] | None = None
        self._events: list[Text] = []
        self._shifts = 0
        self._killed = False
        self._live = Live(get_renderable=self._picture, console=screen.out, refresh_per_second=12)

    def _introduce(self, task_id: str) -> None:
        self._say(
            ("Onward demo  ", "bold"), ("a deploy of ten steps, and a worker that is killed in the middle", "dim")
        )
        self._say((f"task {task_id} on a {self._home} of its own", "dim"))

    def killed(self, where: str) -> None:
        self._running, self._killed = None, True
        super().killed(where)

    def record(self, record: Record) -> None:
        """Show one more record of the journal."""
        if record.kind == SHIFT:
            self._shifts += 1
            if self._shifts > 1:
                self._continues("finished steps are not run again")
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
        number = NAMES.index(step) + 1
        shown, style = sign(self._screen.out, Mark.DONE)
        self._say("  ", (shown, style), f" {number:>2}  {step:<20} {span(took)}", (f"  worker {shift}", "dim"))

    def _picture(self) -> Any:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=2, justify="right", style="dim")
        grid.add_column(width=1)
        grid.add_column(min_width=20)
        grid.add_column(justify="right", min_width=7, style="dim")
        grid.add_column(style="dim")
        for number, name in enumerate(NAMES, 1):
            grid.add_row(str(number), *self._row(name))
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

    def _sections(self, proof: DeployProof) -> Sequence[Section]:
        return [
            ("The cloud's ledger", lambda: self._block(_counts(proof))),
            ("The journal", lambda: self._print_journal(proof)),
        ]

    def _ending(self, proof: DeployProof) -> Text:
        where = f"Killed in step {FATAL_NUMBER} of {len(NAMES)}"
        return ending_text(proof, f"{where}, on again {span(proof.resumed_after)} later, every effect exactly once.")

    def _print_journal(self, proof: DeployProof) -> None:
        renderer = LineRenderer()
        lines = [line for record in proof.records for line in renderer.render(record) if line.mark is not Mark.PROGRESS]
        print_lines(self._screen.out, lines, renderer.began or 0.0)


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
