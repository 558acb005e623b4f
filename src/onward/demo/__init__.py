"""The apps that `onward demo` plays: `deploy`, ten steps against an imaginary cloud, and `agent`, on a real folder of real logs.

Both are ordinary apps. What they do to their worlds is in a ledger, so that somebody else can count it.
"""

from __future__ import annotations

import os
import threading
import time

QUEUE = "demo"
PARENT = "ONWARD_DEMO_PARENT"
"""The process that plays; its workers leave with it."""


def _leave_with(parent: int) -> None:
    """The demo may be killed too; its workers must not stay behind."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if PARENT in os.environ:
    threading.Thread(target=_leave_with, args=[int(os.environ[PARENT])], daemon=True).start()
