"""The view of a demo: lines while it plays, and on a terminal a part that moves; then the report."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic

from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from onward.cli.demo.proof import Claim, P, Proof
from onward.cli.output.screen import Part, Screen, indented, sign
from onward.cli.output.timeline import Mark

Section = tuple[str, Callable[[], None]]
"""A title, and the function that prints the content."""


class Board(abc.ABC, Generic[P]):
    """Prints the events of a demo. On a terminal a part of it moves; elsewhere there are only lines."""

    _live: Live
    """The part that moves."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._worker = 0
        """The number of the newest worker."""
        self._spinner = Spinner("dots", style="cyan")
        self._over = False

    @contextlib.contextmanager
    def shown(self, task_id: str) -> Iterator[None]:
        """The block in which the demo plays."""
        self._introduce(task_id)
        if not self._screen.live:
            yield
            return
        with self._live:
            yield
            self._over = True

    @abc.abstractmethod
    def _introduce(self, task_id: str) -> None:
        """Print the first lines."""

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────

    def started(self, number: int, pid: int) -> None:
        """A worker process was started."""
        self._worker = number
        self._event(Mark.BEGIN, f"worker {number} started", f"pid {pid}")

    def killed(self, where: str) -> None:
        """The worker was killed."""
        self._event(Mark.CRASH, f"worker {self._worker} killed with -9", where)

    def _continues(self, detail: str) -> None:
        """The next worker has claimed the task."""
        self._event(Mark.BEGIN, f"worker {self._worker} goes on from the journal", detail)

    def _event(self, mark: Mark, text: str, detail: str) -> None:
        shown, style = sign(self._screen.out, mark)
        self._print_event(Text.assemble((f"{shown} {text}", style), (f"  {detail}" if detail else "", "dim")))

    def _print_event(self, line: Text) -> None:
        self._print(line)

    def _say(self, *parts: Part) -> None:
        self._print(Text.assemble(*parts))

    def _print(self, renderable: Any) -> None:
        if not self._screen.json:
            self._screen.out.print(renderable, soft_wrap=not self._screen.out.is_terminal)

    # ── the report ───────────────────────────────────────────────────────────────────────────────────────────────

    def report(self, proof: P) -> None:
        """Print the sections of the demo, the claims of its proof, and a last sentence."""
        claims: Section = ("The proof", lambda: self._block(_claims(self._screen, proof.claims)))
        for title, print_content in (*self._sections(proof), claims):
            self._screen.say()
            self._screen.say((title, "bold"))
            print_content()
        self._screen.say()
        self._screen.block(self._ending(proof))

    def _block(self, renderable: Any) -> None:
        self._screen.block(indented(renderable))

    @abc.abstractmethod
    def _sections(self, proof: P) -> Sequence[Section]: ...

    @abc.abstractmethod
    def _ending(self, proof: P) -> Text: ...


def _claims(screen: Screen, claims: Sequence[Claim]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for sentence, true in claims:
        grid.add_row(Text(*sign(screen.out, Mark.DONE if true else Mark.FAILED)), Text(sentence, "" if true else "red"))
    return grid


def ending_text(proof: Proof, summary: str) -> Text:
    """The last sentence of the report: the summary if the proof holds."""
    if not proof.holds:
        return Text("The proof does not hold: please report this, with the lines above.", "bold red")
    return Text.assemble(("Onward. ", "bold green"), summary)
