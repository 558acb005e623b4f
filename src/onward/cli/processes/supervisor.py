"""The supervisor: starts processes, replaces dead ones, and ends them all.

It runs no code of the app. The first process has to become ready before the others start, so an app that cannot be imported is one error
and ends the supervisor. A process that dies later is replaced; one that dies soon after its start, after a pause that doubles. On the first
SIGTERM or Ctrl-C every process hands its tasks back; on a second one the supervisor kills them.

The processes are in process groups of their own: Ctrl-C in a terminal reaches the supervisor alone. When the supervisor is killed, they
notice it by their lifelines (`child.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from onward.cli.output.events import print_event
from onward.cli.output.screen import Screen
from onward.cli.output.text import count, safe
from onward.cli.processes.child import VARIABLE
from onward.cli.processes.reload import Watcher

STABLE_S = 10.0
"""Seconds after which a process counts as well started: its death is not the fault of its start."""

FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
"""The pause before a process is started again that died soon after its start; it doubles up to the second."""

MAX_DOUBLINGS = 10
"""More would not make the pause longer, and thousands are no number."""

MAX_LINE_BYTES = 1 << 20
"""Bytes of a line of a process that are printed at once."""

MAX_NAMED = 3
"""Changed files that the line about a reload names."""

RELOAD_S = 5.0
"""Seconds that a process has to end when the code has changed. Then it is killed: a person waits for the new code."""

DRAIN_S = 1.0
"""Seconds that are waited for the last output of a process that has ended."""


@dataclasses.dataclass(slots=True)
class Place:
    """The place of one process: the words of its command, the process, and the numbers that it reported last."""

    number: int
    words: Sequence[str]
    process: asyncio.subprocess.Process | None = None
    ready: bool = False
    """Whether the process has been ready."""
    running: int = 0
    slots: int = 0
    finished: int = 0
    before: int = 0
    """Tasks that its former processes finished."""
    early_deaths: int = 0
    """Processes that died soon after their start, since one did not."""
    changed: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set while its process is to be replaced because the code has changed."""


class Supervisor:
    """Keeps processes running. `commands` are the words behind `onward` of each of them."""

    def __init__(
        self,
        screen: Screen,
        commands: Sequence[Sequence[str]],
        *,
        watcher: Watcher | None = None,
        environment: dict[str, str] | None = None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._screen, self._watcher, self._environment = screen, watcher, environment or {}
        self._places = [Place(number, words) for number, words in enumerate(commands, 1)]
        self._on_ready = on_ready
        self._stopping, self._first_ready = asyncio.Event(), asyncio.Event()
        self._status = 0
        self._rates: list[tuple[float, int]] = []

    async def run(self) -> int:
        """Start the processes and keep them until a signal. Returns the exit status."""
        with self._signals():
            async with self._live():
                first, *others = self._places
                keeping = [asyncio.ensure_future(self._keep(first))]
                if self._watcher is not None:
                    keeping.append(asyncio.ensure_future(self._reload(self._watcher)))
                await _any_of(self._stopping, self._first_ready)
                keeping += [asyncio.ensure_future(self._keep(place)) for place in others]
                await asyncio.gather(*keeping)
            if len(self._places) > 1 and not self._status:
                done = sum(place.before + place.finished for place in self._places)
                print_event(self._screen, "stopped", f"{_processes(len(self._places))}, {count(done, 'shift')} done")
        return self._status

    # ── one process ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _keep(self, place: Place) -> None:
        """Have a process in this place until the supervisor stops."""
        while not self._stopping.is_set():
            began = time.monotonic()
            place.changed.clear()
            try:
                status = await self._run_once(place)
                how = _ending(status)
            except OSError as error:  # no memory, too many open files, or a Python that is being replaced
                status, how = 1, f"could not be started ({error})"
            if not self._stopping.is_set() and not place.changed.is_set():
                await self._after_death(place, status, how, time.monotonic() - began)

    async def _after_death(self, place: Place, status: int, how: str, lived_s: float) -> None:
        """Decide what follows the end of a process that the supervisor did not stop."""
        if status > 0 and not place.ready and self._watcher is not None:  # the process has printed why
            print_event(self._screen, "waiting", "for a change of the code")
            await _any_of(self._stopping, place.changed)
            return
        if status > 0 and not self._first_ready.is_set():
            self._status = status
            self._stopping.set()
            return
        place.early_deaths = place.early_deaths + 1 if lived_s < STABLE_S else 0
        pause = (
            min(FIRST_PAUSE_S * 2 ** min(place.early_deaths - 1, MAX_DOUBLINGS), MAX_PAUSE_S)
            if place.early_deaths
            else 0.0
        )
        again = f"another one starts in {pause:g} s" if pause else "another one starts"
        print_event(self._screen, "died", f"process {place.number} {how} after {lived_s:.0f} s; {again}")
        await _any_of(self._stopping, place.changed, timeout=pause)

    async def _run_once(self, place: Place) -> int:
        """Run a process to its end. Returns its exit status, negative for a signal."""
        place.before, place.finished = place.before + place.finished, 0
        place.running, place.ready = 0, False
        place.process, held, reports = await self._spawn(place)
        process = place.process
        if self._stopping.is_set() or place.changed.is_set():  # the signal came before the process
            self._signal(place, signal.SIGTERM)
        streams = [self._print(stream) for stream in (process.stdout, process.stderr) if stream is not None]
        readers = [asyncio.ensure_future(reading) for reading in (self._hear(place, reports), *streams)]
        try:
            status = await process.wait()
            place.process, place.running = None, 0
            await asyncio.wait(readers, timeout=DRAIN_S)  # programs that it started may hold the pipes open for long
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            os.close(held)
        return status

    async def _spawn(self, place: Place) -> tuple[asyncio.subprocess.Process, int, int]:
        """Start a process. Returns it, the end of its lifeline that the supervisor holds, and the end of the pipe with its reports."""
        piped = asyncio.subprocess.PIPE if self._screen.live else None
        ends: list[int] = []
        try:
            lifeline, held = os.pipe()
            ends += [lifeline, held]
            reports, report_end = os.pipe()
            ends += [reports, report_end]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "onward", *place.words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=piped,
                stderr=piped,
                pass_fds=(lifeline, report_end),
                process_group=0,
                env={**os.environ, **self._environment, VARIABLE: f"{lifeline},{report_end}"},
            )
        except BaseException:
            for end in ends:
                os.close(end)
            raise
        os.close(lifeline)
        os.close(report_end)
        return process, held, reports

    async def _hear(self, place: Place, reports: int) -> None:
        """Read the reports of a process to their end."""
        async for line in _lines(reports):
            with contextlib.suppress(ValueError):
                facts: dict[str, Any] = json.loads(line)
                place.running = facts.get("running", place.running)
                place.slots = facts.get("slots", place.slots)
                place.finished = facts.get("finished", place.finished)
                if facts.get("ready"):
                    place.ready = True
                    self._first_ready.set()
                    self._on_ready()

    async def _print(self, stream: asyncio.StreamReader) -> None:
        """Print the output of a process above the status line."""
        rest = b""
        while chunk := await stream.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._screen.out.print(Text(safe(line.decode("utf-8", "replace"))), soft_wrap=True)
        if rest:
            self._screen.out.print(Text(safe(rest.decode("utf-8", "replace"))), soft_wrap=True)

    # ── all processes ────────────────────────────────────────────────────────────────────────────────────────────

    async def _reload(self, watcher: Watcher) -> None:
        """Start all processes anew when a file has changed."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        while True:
            changing = asyncio.ensure_future(watcher.changed())
            await asyncio.wait([changing, stopping], return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                changing.cancel()
                return
            names = changing.result()
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            print_event(self._screen, "reload", f"{', '.join(names[:MAX_NAMED])}{more} changed")
            await asyncio.gather(*[self._replace(place) for place in self._places])

    async def _replace(self, place: Place) -> None:
        """Have the process of a place end, so that another one with the new code takes its place."""
        process, place.early_deaths = place.process, 0
        place.changed.set()
        self._signal(place, signal.SIGTERM)
        if process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), RELOAD_S)
            if place.process is process:
                self._signal(place, signal.SIGKILL)

    def _signal(self, place: Place, number: signal.Signals) -> None:
        if place.process is not None:
            with contextlib.suppress(ProcessLookupError):
                place.process.send_signal(number)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first SIGTERM or SIGINT stops all processes, a second one kills them."""
        loop = asyncio.get_running_loop()

        def stop(number: signal.Signals) -> None:
            if self._stopping.is_set():
                for place in self._places:
                    self._signal(place, signal.SIGKILL)
                os._exit(128 + number)
            self._stopping.set()
            print_event(self._screen, "stopping", "all processes hand their tasks back; a second signal exits at once")
            for place in self._places:
                self._signal(place, signal.SIGTERM)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    # ── the status line ──────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def _live(self) -> AsyncIterator[None]:
        """Show one line about all processes at the bottom of a terminal."""
        if not self._screen.live:
            yield
            return
        spinner = Spinner("dots", style="green")

        def line() -> Spinner:
            spinner.update(text=self._line())
            return spinner

        with Live(get_renderable=line, console=self._screen.out, refresh_per_second=8, transient=True):
            yield

    def _line(self) -> Text:
        now, done = time.monotonic(), sum(place.before + place.finished for place in self._places)
        self._rates = [*(sample for sample in self._rates if now - sample[0] < 5), (now, done)][-60:]
        since, then = self._rates[0]
        rate = (done - then) / (now - since) if now - since > 0.5 else 0.0
        running = sum(place.running for place in self._places)
        slots = sum(place.slots for place in self._places if place.process is not None)
        alive = sum(place.ready and place.process is not None for place in self._places)
        state = (
            ("stopping", "yellow") if self._stopping.is_set() else ("working", "green") if running else ("idle", "dim")
        )
        numbers = f"  {alive} of {_processes(len(self._places))}  {running}/{slots} running  {done:,} done  "
        text = Text.assemble(state, numbers, (f"{rate:.1f}/s", "dim"))
        text.no_wrap = True
        return text


async def _any_of(*events: asyncio.Event, timeout: float | None = None) -> None:
    """Wait until one of these events is set, at most for `timeout` seconds."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


async def _lines(pipe: int) -> AsyncIterator[bytes]:
    """The lines that come through a pipe. Closes it."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", 0)
    )
    try:
        while line := await reader.readline():
            yield line
    finally:
        transport.close()
