"""The messages of a task that its journal has and no wait has taken, by number and by address.

A wait asks for one address (a signal's name, the id of a child, the number of the record that was answered), so finding its
message costs the same however many messages there are.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable
from typing import Any

from onward.core.task import SAID

Message = dict[str, Any]
BUDGET = "budget"
PATCH = "patch"


def address_of(message: Message) -> Hashable:
    """Which waits a message is for."""
    kind = message["kind"]
    if kind in {"signal", "child"}:
        return kind, message["name"]
    address: Hashable = kind if message["ref"] is None else message["ref"]
    return address


_NONE: dict[Any, Any] = {}
"""What a new task has: thousands are begun in a second, and few of them get a message."""


class Mail:
    """What came in and was not taken."""

    __slots__ = ("_at", "_copies", "_messages", "last", "raised")

    def __init__(self, messages: Iterable[Message] = (), last: int = 0) -> None:
        self._messages: dict[int, Message] = _NONE
        self._at: dict[Hashable, int | collections.deque[int]] = _NONE
        """The numbers at each address, in order. Numbers that were taken since are passed over."""
        self._copies: dict[int, Message] = _NONE
        """Messages that a journal of old has more than once: several branches read the inbox at the same time."""
        self.last: int = last
        """The number of the last message that was copied into the journal."""
        self.raised: int = 0
        """The number of the last message that told of more budget. No wait takes such a message: it is for all of them."""
        for message in messages:
            self._put(message)

    def all(self) -> list[Message]:
        """All of them, in the order of their numbers."""
        return list(self._messages.values())

    def add(self, message: Message) -> None:
        """A message, from the journal or on its way into it."""
        number = message["n"]
        if number <= self.last:
            self._copies = {} if self._copies is _NONE else self._copies
            self._copies[number] = message
            return
        self.last = number
        self._put(message)

    def _put(self, message: Message) -> None:
        number = message["n"]
        if message["kind"] == BUDGET:
            self.raised = max(self.raised, number)
            return
        if self._messages is _NONE:
            self._messages, self._at = {}, {}
        self._messages[number] = message
        address = address_of(message)
        there = self._at.setdefault(address, number)
        if isinstance(there, collections.deque):
            there.append(number)
        elif there != number:
            self._at[address] = collections.deque((there, number))

    def take(self, number: int) -> Message:
        """The message of that number, which is no more to be had. A journal of old may give one to two waits."""
        message = self._messages.pop(number, None)
        return self._copies[number] if message is None else message

    def discard(self, number: int) -> None:
        """The message of that number, if it is there, was taken."""
        self._messages.pop(number, None)

    def get(self, number: int) -> Message:
        """The message of that number, which stays."""
        message = self._messages.get(number)
        return self._copies[number] if message is None else message

    def first(self, address: Hashable) -> Message | None:
        """The first message at an address; it stays until it is taken."""
        there = self._at.get(address)
        if isinstance(there, collections.deque):
            while there and there[0] not in self._messages:
                there.popleft()
            there = there[0] if there else None
        message = None if there is None else self._messages.get(there)
        if message is None:
            self._at.pop(address, None)
        return message

    def take_all(self, *addresses: Hashable) -> list[Message]:
        """All messages at these addresses, in the order of their numbers; they are no more to be had."""
        found: list[Message] = []
        for address in addresses:
            while (message := self.first(address)) is not None:
                found.append(self.take(message["n"]))
        return sorted(found, key=lambda message: int(message["n"]))


SPOKEN: tuple[Hashable, ...] = (SAID, ("signal", SAID))
"""The addresses of what people said to the task; a signal of that name is the same."""
