"""The actor of a command: the name under which the journal and the audit log record what the command does.

The operating system says who runs the command: the name of the account with the user id of the process, and the name of the machine.
Environment variables (`USER`, `LOGNAME` …) say nothing here: each user can set them to any name.
"""

from __future__ import annotations

import os
import socket

from onward.core.caller import Caller
from onward.core.text import short

MAX_NAME_CHARS = 100
"""Characters of the name of an account, and of a machine."""


def actor(door: str = "cli") -> str:
    """`cli:USER@HOST`. An account without a name, as in some containers, is `uid` and its number."""
    return f"{door}:{short(_user(), MAX_NAME_CHARS)}@{short(socket.gethostname(), MAX_NAME_CHARS)}"


def cli_caller() -> Caller:
    """The caller of a command that works on the database itself. It may do everything."""
    return Caller(name=actor())


def _user() -> str:
    try:
        import pwd  # noqa: PLC0415 -- not on Windows
    except ImportError:
        return os.getlogin()  # asks the system there, and no variable
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid{os.getuid()}"
