"""The apps of `onward demo`: `deploy`, ten steps against an imaginary cloud, `agent`, on a real folder of real logs, and `brokers`, with orders
that come over Redis.

They are ordinary apps. A ledger has all that the first two do to their worlds, so that the demo can count it.
"""

from __future__ import annotations

import os
import threading
import time

QUEUE = "demo"
ORDERS_STREAM, SHIPPED_SUBJECT = "ORDERS", "shop.shipped"
"""The stream of Redis and the subject of NATS of the demo of brokers."""
PARENT_VARIABLE = "ONWARD_DEMO_PARENT"
"""The environment variable with the pid of the demo; its workers end with it."""


def default_db() -> str:
    """The database of the app of a demo; empty where ONWARD_ENGINE names another engine, which has the tasks: a demo has no mirror."""
    return "" if os.environ.get("ONWARD_ENGINE") else "sqlite:///onward-demo.db"


def _exit_with(parent: int) -> None:
    """End this process when its parent ends: the demo may be killed too, and its workers must not stay behind."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if PARENT_VARIABLE in os.environ:
    threading.Thread(target=_exit_with, args=[int(os.environ[PARENT_VARIABLE])], daemon=True).start()
