"""The lines of a demo while it plays, and its report at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from onward.cli.demo.proof import Claim, Proof
from onward.cli.output.screen import Part, Screen, indented, sign
from onward.cli.output.timeline import Mark

Section = tuple[str, Callable[[], None]]
"""A title, and the function that prints the content."""


class Board:
    """Prints the events of a demo. On a terminal a part of it moves; elsewhere there are only lines."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._worker = 0
        """The number of the newest worker."""

    def started(self, number: int, pid: int) -> None:
        """A worker process was started."""
        self._worker = number
        self._event(Mark.BEGIN, f"worker {number} started", f"pid {pid}")

    def killed(self, where: str) -> None:
        """The worker was killed."""
        self._event(Mark.CRASH, f"worker {self._worker} killed with -9", where)

    def continues(self, detail: str) -> None:
        """The next worker has claimed the task."""
        self._event(Mark.BEGIN, f"worker {self._worker} goes on from the journal", detail)

    def say(self, *parts: Part) -> None:
        """Print a line."""
        self._print(Text.assemble(*parts))

    def _event(self, mark: Mark, text: str, detail: str) -> None:
        shown, style = sign(self._screen.out, mark)
        self._print_event(Text.assemble((f"{shown} {text}", style), (f"  {detail}" if detail else "", "dim")))

    def _print_event(self, line: Text) -> None:
        self._print(line)

    def _print(self, renderable: Any) -> None:
        if not self._screen.json:
            self._screen.out.print(renderable, soft_wrap=not self._screen.out.is_terminal)


def print_sections(screen: Screen, sections: Sequence[Section], proof: Proof, ending: Text) -> None:
    """Print the report: the sections, the claims of the proof, and a last sentence."""
    claims: Section = ("The proof", lambda: screen.block(indented(_claims(screen, proof.claims))))
    for title, print_content in (*sections, claims):
        screen.say()
        screen.say((title, "bold"))
        print_content()
    screen.say()
    screen.block(ending)


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
