"""Live text: what a model says, as it comes, for those who watch.

It is told a few times a second and not for each word, because every telling is a record. A quick reply is not told at all:
its record comes as soon. Nothing depends on it; a replay tells nothing. A reader puts the pieces of one turn and one attempt
together; text that is withdrawn, or was told before another shift began, is void.

The number of an attempt is the number of the record that tells its first piece. So numbers grow over the whole task, and no
attempt after a crash, a pause or a failure gets a number that a reader has seen withdrawn.
"""

from __future__ import annotations

from typing import Any

from onward.engine.context.context import Context

EVERY = 0.5
"""Seconds between two tellings."""


class Live:
    """The text of one attempt to get one reply. Called with each piece of it."""

    def __init__(self, ctx: Context, turn: int) -> None:
        self._ctx, self._turn = ctx, turn
        self._pieces: list[str] = []
        self._last = ctx.host.now()
        self._attempt = 0
        """Its number; 0 as long as nothing was told of it."""

    def __call__(self, piece: str) -> None:
        self._pieces.append(piece)
        if (now := self._ctx.host.now()) - self._last >= EVERY:
            self._last, text = now, "".join(self._pieces).encode("utf-8", "replace").decode()
            self._pieces.clear()
            self._attempt = self._attempt or self._ctx.host.last_record() + 1
            self._tell(text=text)

    def withdraw(self) -> None:
        """Nothing came of this attempt: what was told of it is void."""
        if self._attempt:
            self._tell(text="", withdrawn=True)

    def _tell(self, **more: Any) -> None:
        self._ctx.progress(step=self._turn, turn=self._turn, attempt=self._attempt, **more)
