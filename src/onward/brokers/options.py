"""Options that the URL of a broker may have for Onward, as in `nats://HOST:4222?ack_wait=10`."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable
from typing import TypeVar

from onward.core.durations import seconds
from onward.errors import BadSetting

Value = TypeVar("Value")


class Options:
    """The options of a URL. The source takes those that it knows; `finish` refuses the others."""

    def __init__(self, broker: str, url: str) -> None:
        self._broker = broker
        self._parts = urllib.parse.urlsplit(url)
        self._values = dict(urllib.parse.parse_qsl(self._parts.query, keep_blank_values=True))
        self._known: list[str] = []

    @property
    def url(self) -> str:
        """The URL without any option."""
        return urllib.parse.urlunsplit(self._parts._replace(query="", fragment=""))

    def url_with_rest(self, **defaults: str) -> str:
        """The URL with the options that were not taken, which are for the client of the broker, and with these defaults."""
        return urllib.parse.urlunsplit(self._parts._replace(query=urllib.parse.urlencode({**defaults, **self._values})))

    def seconds(self, name: str, default: float, least: float, most: float) -> float:
        """A duration. Raises BadSetting."""
        return self._take(name, default, lambda text: seconds(text, name), least, most)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number. Raises BadSetting."""
        return self._take(name, default, int, least, most)

    def starting_with(self, *beginnings: str) -> dict[str, str]:
        """Those options whose names begin so."""
        self._known += [f"{beginning}…" for beginning in beginnings]
        return {name: self._values.pop(name) for name in list(self._values) if name.startswith(beginnings)}

    def finish(self) -> None:
        """Raises BadSetting when an option was not taken. It names the option without its value, which may be a password."""
        for name in self._values:
            raise BadSetting(f"an option of the URL of broker {self._broker}", name, f"one of {', '.join(self._known)}")

    def _take(self, name: str, default: Value, convert: Callable[[str], Value], least: Value, most: Value) -> Value:
        self._known.append(name)
        if name not in self._values:
            return default
        text = self._values.pop(name)
        try:
            value = convert(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:  # type: ignore[operator]
            raise BadSetting(f"{name} in the URL of broker {self._broker}", text, f"{least} to {most}")
        return value


OWN_OPTIONS = frozenset({"ack_wait", "claim_after", "dedupe_s", "maxlen", "prefetch", "session_timeout"})
"""All options of Onward: one URL serves ways in, ways out, bells and caches, each with options of its own."""


def client_url(url: str) -> str:
    """The URL for the client of a broker: without options of Onward, and with redis:// for valkey://."""
    parts = urllib.parse.urlsplit(url)
    pairs = urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
    query = urllib.parse.urlencode([pair for pair in pairs if pair[0] not in OWN_OPTIONS])
    return urllib.parse.urlunsplit(
        parts._replace(scheme="redis" if parts.scheme == "valkey" else parts.scheme, query=query)
    )
