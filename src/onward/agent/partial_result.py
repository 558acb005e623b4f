"""The partial result of an agent: the best that it has when it ends before its answer.

It consists of the last text of the model, and of the answers of the agents that it called. A later final reply of the model replaces
those answers, because the model had seen them.
"""

from __future__ import annotations

import dataclasses

from onward.core import wire
from onward.core.slice import cut

MAX_BYTES = 32_000
"""For the model's text, and for the answers of other agents together."""


@dataclasses.dataclass(slots=True)
class PartialResult:
    """The best result of an agent so far."""

    model_text: str = ""
    answers: list[str] = dataclasses.field(default_factory=list)
    """The answers of other agents, each with the agent's name."""
    left_out: int = 0
    """The number of answers, the oldest, for which there was no room."""

    def add_reply(self, text: str, *, final: bool) -> None:
        """Add a reply of the model; `final` when it has no calls."""
        self.model_text = cut(text, MAX_BYTES)
        if final:
            self.answers, self.left_out = [], 0

    def add_answer(self, agent: str, text: str) -> None:
        """Add the answer of another agent."""
        self.answers.append(f"{agent} {cut(text, MAX_BYTES)}")
        while len(self.answers) > 1 and self._answer_bytes() > MAX_BYTES:
            del self.answers[0]
            self.left_out += 1

    def _answer_bytes(self) -> int:
        return sum(len(answer.encode("utf-8", "replace")) for answer in self.answers)

    @property
    def text(self) -> str | None:
        """The whole partial result; None when it is empty."""
        note = [f"({self.left_out} earlier answers are left out; the journal has them.)"] if self.left_out else []
        return "\n\n".join([*([self.model_text] if self.model_text.strip() else []), *note, *self.answers]) or None

    def encode(self) -> bytes:
        """The form in which a task keeps it."""
        return wire.encode([self.model_text, self.answers, self.left_out])

    @classmethod
    def decode(cls, data: bytes) -> PartialResult:
        """The opposite of `encode`."""
        return cls(*wire.decode(data))
