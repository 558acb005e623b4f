"""Clients: the verbs of an app over HTTP, for programs elsewhere. `Client` is for code with an event loop, `SyncClient` for code without.

Each verb is written once, as a script (`script.py`): a generator that yields requests and pauses and does no I/O itself. The two clients
differ only in how they run scripts. The package imports `core` and modules of the root, and nothing of the server's side.
"""

from typing import TYPE_CHECKING

from onward.lazy import lazy

if TYPE_CHECKING:
    from onward.client.client import Client, Handle, SyncClient, SyncHandle
    from onward.errors import Unreachable
else:
    __getattr__, __dir__ = lazy(
        globals(),
        {
            "Client": "onward.client.client",
            "Handle": "onward.client.client",
            "SyncClient": "onward.client.client",
            "SyncHandle": "onward.client.client",
            "Unreachable": "onward.errors",
        },
    )

__all__ = ["Client", "Handle", "SyncClient", "SyncHandle", "Unreachable"]
