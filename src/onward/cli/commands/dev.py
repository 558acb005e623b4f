"""dev: the server, a worker and the console for development, started anew when the code changes."""

from __future__ import annotations

from argparse import Namespace

from onward.cli.output.events import print_event
from onward.cli.output.screen import Screen
from onward.cli.processes.start import supervise
from onward.config import load as load_settings

HOST = "127.0.0.1"


def dev(args: Namespace) -> int:
    """`onward dev`."""
    screen = Screen(args)
    port = args.port if args.port is not None else load_settings({}).port
    words = ["serve", args.app, "--host", HOST, "--port", str(port)]
    words += [*(["--db", args.db] if args.db is not None else []), *(["--json"] if args.json else [])]
    shown: list[str] = []

    def on_ready() -> None:
        if not shown:
            shown.append(f"http://{HOST}:{port}/")
            print_event(screen, "console", f"{shown[0]} · a change of the code starts it anew · Ctrl-C ends it")

    return supervise(screen, [words], reload=True, on_ready=on_ready)
