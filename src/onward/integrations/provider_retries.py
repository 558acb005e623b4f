"""Switches off the retries of a provider's SDK while a step makes a request: the journal has the attempts, and tasks wait for a quota together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def without_retries(client: Any) -> Iterator[None]:
    """In this block, a client of the SDKs of OpenAI, Anthropic and others makes one attempt. The SDKs read this attribute when a request
    begins, so a restored value does not change a request that is under way."""
    retries = getattr(client, "max_retries", None)
    if not isinstance(retries, int) or not retries:
        yield
        return
    client.max_retries = 0
    try:
        yield
    finally:
        client.max_retries = retries
