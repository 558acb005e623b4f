"""Mail: the messages of a task that are in its journal and that no wait has taken, by number and by address.

A wait asks for one address (a signal's name, the id of a child, the number of the record that was answered), so finding its
message costs the same however many messages there are.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable
from typing import Any

from onward.core.approval import VOTE
from onward.core.lock import MESSAGE as LOCK
from onward.core.task import SAID

Message = dict[str, Any]
"""A message as the journal has it: n (its number), kind, name, ref, value."""

BUDGET = "budget"
PATCH = "patch"


_EMPTY: dict[Any, Any] = {}
"""The tables of a new task: workers start thousands in a second, and few of them get a message."""


class Mail:
    """The messages that have arrived and were not taken."""

    __slots__ = ("_by_address", "_copies", "_messages", "last", "last_call", "last_raise")

    def __init__(self, messages: Iterable[Message] = (), last: int = 0) -> None:
        self._messages: dict[int, Message] = _EMPTY
        self._by_address: dict[Hashable, int | collections.deque[int]] = _EMPTY
        """The numbers at each address, in order. Readers skip numbers that were taken since."""
        self._copies: dict[int, Message] = _EMPTY
        """Messages that an old journal has more than once: several branches had read the inbox at the same time."""
        self.last: int = last
        """The number of the last message that was copied into the journal."""
        self.last_raise: int = 0
        """The number of the last message about a raised budget. No wait takes such a message: it is for all of them."""
        self.last_call: int = 0
        """The number of the last message that a lock may be free. All waits for a lock look again then."""
        for message in messages:
            self._put(message)

    def all(self) -> list[Message]:
        """All of them, in the order of their numbers."""
        return list(self._messages.values())

    def add(self, message: Message) -> None:
        """Add a message, from the journal or on its way into it."""
        number = message["n"]
        if number <= self.last:
            self._copies = {} if self._copies is _EMPTY else self._copies
            self._copies[number] = message
            return
        self.last = number
        self._put(message)

    def _put(self, message: Message) -> None:
        number = message["n"]
        if message["kind"] == BUDGET:
            self.last_raise = max(self.last_raise, number)
            return
        if message["kind"] == LOCK:
            self.last_call = max(self.last_call, number)
            return
        if message["kind"] == VOTE:  # only the decision that follows from the votes ends a wait
            return
        if self._messages is _EMPTY:
            self._messages, self._by_address = {}, {}
        self._messages[number] = message
        address = address_of(message)
        numbers = self._by_address.setdefault(address, number)
        if isinstance(numbers, collections.deque):
            numbers.append(number)
        elif numbers != number:  # the second message at this address
            self._by_address[address] = collections.deque((numbers, number))

    def take(self, number: int) -> Message:
        """Take the message of that number out. An old journal may give one message to two waits."""
        message = self._messages.pop(number, None)
        return self._copies[number] if message is None else message

    def discard(self, number: int) -> None:
        """Remove the message of that number, if it is there."""
        self._messages.pop(number, None)

    def get(self, number: int) -> Message:
        """The message of that number, which stays."""
        message = self._messages.get(number)
        return self._copies[number] if message is None else message

    def first(self, address: Hashable) -> Message | None:
        """The first message at an address; it stays until it is taken."""
        numbers = self._by_address.get(address)
        if isinstance(numbers, collections.deque):
            while numbers and numbers[0] not in self._messages:
                numbers.popleft()
            numbers = numbers[0] if numbers else None
        message = None if numbers is None else self._messages.get(numbers)
        if message is None:
            self._by_address.pop(address, None)
        return message

    def take_all(self, *addresses: Hashable) -> list[Message]:
        """Take all messages at these addresses out, in the order of their numbers."""
        taken: list[Message] = []
        for address in addresses:
            while (message := self.first(address)) is not None:
                taken.append(self.take(message["n"]))
        return sorted(taken, key=lambda message: int(message["n"]))


def address_of(message: Message) -> Hashable:
    """The address of a message: the waits at this address may take it."""
    kind = message["kind"]
    if kind in {"signal", "child"}:
        return kind, message["name"]
    address: Hashable = kind if message["ref"] is None else message["ref"]
    return address


SPOKEN: tuple[Hashable, ...] = (SAID, ("signal", SAID))
"""The addresses of messages of people to the task; a signal of that name is the same."""
