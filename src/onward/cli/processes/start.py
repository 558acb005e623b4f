"""Starts a supervisor for `onward worker --processes N`, `--reload` and `onward dev`: the commands of its processes."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from onward.cli.output.screen import Screen
from onward.cli.processes.reload import Watcher
from onward.config import load as load_settings
from onward.config import variable
from onward.errors import UsageError

AUTO = "auto"
MAX_PROCESSES = 256
MAX_PORT = 65535
RELOAD_GRACE_S = "1"
"""Seconds that steps have to end when the code has changed, unless ONWARD_GRACE_S says otherwise: a person waits for the new code."""


def supervise_workers(args: Namespace) -> int:
    """`onward worker` with --processes or --reload."""
    number = cores() if args.processes == AUTO else args.processes or 1
    if number > MAX_PROCESSES:
        raise UsageError(f"--processes is {MAX_PROCESSES} at most; start more on another machine")
    port = args.metrics_port if args.metrics_port is not None else load_settings({}).metrics_port
    if port and port + number - 1 > MAX_PORT:
        raise UsageError(
            f"{number} processes need the metrics ports {port} to {port + number - 1}, and the highest is {MAX_PORT}"
        )
    common = [
        "worker",
        args.app,
        *_given(args, "db", "slots"),
        *(["--queues", ",".join(args.queues)] if args.queues else []),
    ]
    common += [*(["--no-intake"] if args.no_intake else []), *(["--json"] if args.json else [])]
    commands = [
        [*common, *(["--metrics-port", str(port + index)] if port else [])]  # one port for each
        for index in range(number)
    ]
    return supervise(Screen(args), commands, reload=args.reload)


def supervise(
    screen: Screen, commands: Sequence[Sequence[str]], *, reload: bool, on_ready: Callable[[], None] = lambda: None
) -> int:
    """Run these commands of `onward`, one process each, until a signal. Returns the exit status."""
    if os.name == "nt":
        raise UsageError(
            "Windows has no --processes, --reload and `onward dev`: their supervisor needs process groups and pipes of POSIX; start "
            "`onward worker` or `onward serve` several times, or use WSL"
        )
    from onward.cli.processes.supervisor import Supervisor  # noqa: PLC0415 -- most commands need none

    environment = {variable("grace_s"): os.environ.get(variable("grace_s"), RELOAD_GRACE_S)} if reload else {}

    async def run() -> int:
        watcher = Watcher(Path.cwd()) if reload else None
        return await Supervisor(screen, commands, watcher=watcher, environment=environment, on_ready=on_ready).run()

    return asyncio.run(run())


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _given(args: Namespace, *names: str) -> list[str]:
    """The options of these names that were given, as words."""
    return [word for name in names if (value := getattr(args, name)) is not None for word in (f"--{name}", str(value))]
