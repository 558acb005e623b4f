"""The best result so far: what is left of an agent's work when it ends before its answer.

It is the last thing that the model said, and what the agents that it called have answered, unless the model has answered since
then with all of it before its eyes.
"""

from __future__ import annotations

import dataclasses

from onward.core import wire
from onward.core.slice import cut

LONGEST = 32_000
"""Bytes of the model's words, and of the answers of other agents together."""


@dataclasses.dataclass(slots=True)
class Best:
    """What an agent has by now."""

    said: str = ""
    answers: list[str] = dataclasses.field(default_factory=list)
    """What other agents answered, each with the agent's name."""
    left_out: int = 0
    """Answers for which there was no room, the oldest."""

    def say(self, text: str, *, final: bool) -> None:
        """The model said something; `final` when it asked for nothing further."""
        self.said = cut(text, LONGEST)
        if final:
            self.answers, self.left_out = [], 0

    def hear(self, agent: str, text: str) -> None:
        """Another agent answered."""
        self.answers.append(f"{agent} {cut(text, LONGEST)}")
        while len(self.answers) > 1 and sum(len(one.encode("utf-8", "replace")) for one in self.answers) > LONGEST:
            del self.answers[0]
            self.left_out += 1

    @property
    def text(self) -> str | None:
        """All of it; None when there is nothing."""
        note = [f"({self.left_out} earlier answers are left out; the journal has them.)"] if self.left_out else []
        return "\n\n".join([*([self.said] if self.said.strip() else []), *note, *self.answers]) or None

    @property
    def written(self) -> bytes:
        """As a task keeps it."""
        return wire.encode([self.said, self.answers, self.left_out])

    @classmethod
    def read(cls, data: bytes) -> Best:
        """What `written` gave."""
        return cls(*wire.decode(data))
