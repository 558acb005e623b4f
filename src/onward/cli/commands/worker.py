"""worker: a process that does tasks until a signal stops it.

On the first SIGTERM or SIGINT it hands its tasks back, on a second one it exits at once. The signal handlers are set with
`signal.signal`, not on the event loop: a task handler that blocks the loop must not block the second signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Iterator
from types import FrameType
from typing import Any

from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from onward.app.application import Onward
from onward.app.engines import RunningWorker
from onward.cli.args import connect
from onward.cli.output.events import print_event
from onward.cli.output.screen import Screen
from onward.cli.output.text import clock, count, safe
from onward.cli.processes import child
from onward.cli.processes.start import supervise_workers
from onward.logging import JsonLines


def work(args: Namespace) -> int:
    """`onward worker`."""
    if args.processes is not None or args.reload:
        return supervise_workers(args)
    screen, supervised = Screen(args), child.attach()
    app = connect.load_app(args)
    screen.json |= app.settings.log == "json"
    if args.metrics_port is not None:
        app.settings = dataclasses.replace(app.settings, metrics_port=args.metrics_port)
    with asyncio.Runner(loop_factory=loop_factory()) as runner, log_lines(screen):
        return runner.run(_work(screen, app, args, supervised))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory of uvloop's event loop if uvloop is installed, else None."""
    try:
        import uvloop  # noqa: PLC0415 -- an extra
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _work(screen: Screen, app: Onward, args: Namespace, supervised: child.Supervised | None) -> int:
    stop = asyncio.Event()
    with stop_on_signals(stop, supervised):
        if supervised is not None:
            supervised.watch(app.settings.grace_s)
        running = app.worker(slots=args.slots, queues=args.queues, intakes=not args.no_intake)
        async with (
            running as worker,
            status_line(screen, app, worker, stop),
            child.reporting(supervised, worker),
        ):
            print_event(screen, "ready", _introduction(app, worker, args))
            await stop.wait()
            second = "; a second signal exits at once" if supervised is None else ""
            grace = f", for up to {app.settings.grace_s:g} s{second}" if worker.running else ""
            print_event(screen, "stopping", f"handing {count(worker.running, 'task')} back{grace}")
            await worker.stop(app.settings.grace_s)
        print_event(screen, "stopped", f"{count(worker.finished, 'shift')} done")
    return 0


def _introduction(app: Onward, worker: RunningWorker, args: Namespace) -> str:
    queues = f"queues {', '.join(args.queues)}" if args.queues else "all queues"
    slots, settings = count(worker.slots, "slot"), app.settings
    url = f"http{'s' if settings.tls_cert else ''}://{settings.metrics_host}:{settings.metrics_port}/metrics"
    metrics = f" · {url}" if settings.metrics_port else ""
    return (
        f"worker {worker.id[-8:]} on {app.store.where}: {', '.join(sorted(app.handlers))} · {queues} · {slots}{metrics}"
    )


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event, supervised: child.Supervised | None = None) -> Iterator[None]:
    """The first SIGTERM or SIGINT sets the event, a second one exits at once. A supervised process ignores the second: it is the same signal
    where systemd or a shell sends one to all processes, and the supervisor another. On a second one of its own the supervisor kills it."""
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        if received and supervised is None:
            os._exit(128 + number)
        received.append(number)
        loop.call_soon_threadsafe(stop.set)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ── log lines and status ─────────────────────────────────────────────────────────────────────────────────────────────


_JSON = JsonLines()
_TASKS = logging.getLogger("onward.task")
"""The logger of starts and ends of tasks. Its lines are for programs; a terminal has a status line that counts tasks."""


class _Lines(logging.Handler):
    """Prints log records as lines: text on stderr, or JSON lines on stdout."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.INFO)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._emit(record)
        except Exception:
            self.handleError(record)

    def _emit(self, record: logging.LogRecord) -> None:
        if self._screen.json:
            sys.stdout.write(f"{_JSON.format(record)}\n")  # in one write: other threads and processes print lines too
            sys.stdout.flush()
            return
        message = record.getMessage()
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        style = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else "dim"
        console = self._screen.out if self._screen.live else self._screen.err
        when = (clock(record.created), "dim")
        console.print(Text.assemble(when, f" {record.levelname.lower()}: ", (safe(message), style)), soft_wrap=True)
        for line in trace.splitlines():
            console.print(Text(f"  {safe(line)}", "dim"), soft_wrap=True)


CHATTY = ("httpx", "httpx2", "httpcore", "urllib3", "botocore", "mcp", "google_genai", "openai", "anthropic")
"""Loggers of client libraries that write a line at INFO for each HTTP call. Their warnings are printed. An app that wants the lines sets
the level of the logger."""


@contextlib.contextmanager
def log_lines(screen: Screen) -> Iterator[None]:
    """Print the log of Onward and of the app, unless the app has set up logging by itself."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    handler = _Lines(screen)
    root.addHandler(handler)
    level, task_level = root.level, _TASKS.level
    root.setLevel(logging.INFO)
    chatty = [logger for logger in map(logging.getLogger, CHATTY) if logger.level == logging.NOTSET]
    for logger in chatty:
        logger.setLevel(logging.WARNING)
    if not screen.json and task_level == logging.NOTSET:
        _TASKS.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        _TASKS.setLevel(task_level)
        for logger in chatty:
            logger.setLevel(logging.NOTSET)


@contextlib.asynccontextmanager
async def status_line(
    screen: Screen, app: Onward, worker: RunningWorker | None, stop: asyncio.Event
) -> AsyncIterator[None]:
    """Show a line at the bottom of a terminal with the state of the worker."""
    if not screen.live or worker is None:
        yield
        return
    with Live(get_renderable=_Status(app, worker, stop).line, console=screen.out, refresh_per_second=8, transient=True):
        yield


class _Status:
    def __init__(self, app: Onward, worker: RunningWorker, stop: asyncio.Event) -> None:
        self._app, self._worker, self._stop = app, worker, stop
        self._spinner = Spinner("dots", style="green")
        self._samples: list[tuple[float, int]] = [(time.monotonic(), 0)]

    def line(self) -> Any:
        """The number of running and finished tasks, and the rate."""
        worker, now = self._worker, time.monotonic()
        self._samples = [*(entry for entry in self._samples if now - entry[0] < 5), (now, worker.finished)][-60:]
        (since, count_then), rate = self._samples[0], 0.0
        if now - since > 0.5:
            rate = (worker.finished - count_then) / (now - since)
        state = (
            ("stopping", "yellow")
            if self._stop.is_set()
            else ("working", "green")
            if worker.running
            else ("idle", "dim")
        )
        text = Text.assemble(
            state, f"  {worker.running}/{worker.slots} running  {worker.finished:,} done  ", (f"{rate:.1f}/s", "dim")
        )
        text.no_wrap = True
        self._spinner.update(text=text)
        return self._spinner
