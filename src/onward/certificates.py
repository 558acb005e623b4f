"""The certificates that outgoing HTTPS connections trust."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl


async def trusted() -> ssl.SSLContext:
    """The context for all connections of this process. A thread loads it, once: that takes 60 ms, too long for the event loop."""
    return await asyncio.to_thread(_load)


@functools.cache
def _load() -> ssl.SSLContext:
    context = ssl.create_default_context()
    with contextlib.suppress(ImportError):  # in addition to the system's certificates, of which there may be none
        import certifi  # noqa: PLC0415 -- comes with the extras

        context.load_verify_locations(certifi.where())
    return context
