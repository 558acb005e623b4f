"""Lines about a process: "ready", "stopping", "stopped"."""

from __future__ import annotations

import os
import time

from rich.text import Text

from onward.cli.output.screen import Screen
from onward.cli.output.text import clock, safe
from onward.service.serialize import iso


def print_event(screen: Screen, event: str, text: str) -> None:
    """Print a line about the process, such as "ready" or "stopped"; with --json as JSON."""
    if screen.json:
        screen.line({"at": iso(time.time()), "event": event, "message": text, "pid": os.getpid()})
    else:
        screen.out.print(Text.assemble((clock(time.time()), "dim"), f" {event}: ", (safe(text), "dim")), soft_wrap=True)
