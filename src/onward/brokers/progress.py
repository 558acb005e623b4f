"""Keeps which messages of a partition or channel are done, for brokers that take one number: up to there all are done."""

from __future__ import annotations

import collections


class Progress:
    """The numbers of messages that were delivered, in ascending order."""

    def __init__(self, last: int = -1) -> None:
        self.last: int = last
        """All messages up to this one are done."""
        self._open: collections.deque[int] = collections.deque()
        self._done: set[int] = set()

    def deliver(self, number: int) -> None:
        """A message was delivered."""
        self._open.append(number)

    def finish(self, number: int) -> None:
        """A message that was delivered is done."""
        self._done.add(number)
        while self._open and self._open[0] in self._done:
            self.last = self._open.popleft()
            self._done.remove(self.last)

    def __len__(self) -> int:
        """Messages that were delivered and are not done, and those behind them."""
        return len(self._open)
