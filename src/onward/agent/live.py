"""Live text: the reply of a model as it comes, for those who follow a task.

The agent reports it a few times a second and not for each word, because every report is a record. A quick reply is not reported: its
own record comes as soon. Nothing depends on live text, and a replay reports none. A reader joins the pieces of one turn and one
attempt; text that was withdrawn, or was reported before another shift began, is void.

The number of an attempt is the number of the record with its first piece. So numbers grow over the whole task, and no attempt
after a crash, a pause or a failure gets a number that a reader has seen withdrawn.
"""

from __future__ import annotations

from typing import Any

from onward.core import mask
from onward.engine.context.context import Context

REPORT_INTERVAL_S = 0.5


class LiveText:
    """Reports the text of one attempt to get one reply. The model calls it with each piece."""

    def __init__(self, ctx: Context, turn: int) -> None:
        self._ctx, self._turn = ctx, turn
        self._pieces: list[str] = []
        self._masked = mask.Stream()
        """A record is masked by itself: a value whose parts come in two reports is masked here."""
        self._last = ctx.host.now()
        self._attempt = 0
        """Its number; 0 until the first report."""

    def __call__(self, piece: str) -> None:
        self._pieces.append(piece)
        if (now := self._ctx.host.now()) - self._last >= REPORT_INTERVAL_S:
            self._last, text = now, "".join(self._pieces).encode("utf-8", "replace").decode()
            self._pieces.clear()
            if text := self._masked.feed(text):
                self._attempt = self._attempt or self._ctx.host.last_record() + 1
                self._report(text=text)

    def withdraw(self) -> None:
        """The attempt failed: its reported text is void."""
        if self._attempt:
            self._report(text="", withdrawn=True)

    def _report(self, **fields: Any) -> None:
        self._ctx.progress(step=self._turn, turn=self._turn, attempt=self._attempt, **fields)
