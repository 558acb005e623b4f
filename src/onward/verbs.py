"""Verbs of an app that are about tasks under way and about the place as a whole: a word to an agent, queues, workers, numbers.

A part of `Onward`, in a file of its own because that one is long.
"""

from __future__ import annotations

from onward.service import Service


class Verbs:
    """See `Onward`."""

    service: Service

    async def message(self, task_id: str, text: str, *, id: str | None = None) -> None:  # noqa: A002
        """Say something to a task while it is under way. With `id`, twice is once.

        An agent reads it before its next turn, as words of a person; one that was about to answer goes on instead. It wakes
        nobody and answers nothing: who waits for an approval, an answer, a budget or a child goes on waiting, and reads it
        then. A handler that is no agent gets it as the signal "message" (`ctx.signal("message")`), or from `ctx.messages()`;
        where it asks for neither, nobody reads it. Raises StateConflict when the task has ended, and TaskNotFound.
        """
        await self.service.messages.message(task_id, text, id=id)
