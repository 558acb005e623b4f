"""An app in a thread of its own, for programs without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Opened(Protocol):
    """An app that opens and closes."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *exc: object) -> None: ...


@contextlib.contextmanager
def running_loop(app: Opened) -> Iterator[None]:
    """Open an app in an event loop that runs in a thread while the block lasts."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="onward", daemon=True)
    thread.start()

    def run(call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, loop).result()

    try:
        run(app.__aenter__())
        try:
            yield
        finally:
            run(app.__aexit__())
            run(_end_others())
            run(loop.shutdown_asyncgens())
            run(loop.shutdown_default_executor())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end_others() -> None:
    """Cancel the calls that are still waiting, so that no thread waits for one of them forever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
