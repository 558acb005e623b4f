"""intake: a process that receives the messages of brokers until a signal stops it. intakes: how all such processes do."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from argparse import Namespace
from collections.abc import AsyncIterator

from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from onward.app.application import Onward
from onward.brokers.intakes import Intakes
from onward.cli.args import connect
from onward.cli.commands.worker import log_lines, loop_factory, stop_on_signals
from onward.cli.output.events import print_event
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed, number
from onward.cli.output.text import age, count, safe
from onward.core.view_json import to_json
from onward.core.views import Intake
from onward.errors import UsageError
from onward.server.http.metrics import exposed

INTAKES = (
    Column("INTAKE"),
    fixed("STATE"),
    Column("FROM", drop=3),
    Column("TO", drop=4),
    number("RATE", drop=5),
    number("LAG"),
    number("DEAD"),
    fixed("SEEN", drop=2),
    Column("", drop=1),
)

STYLES = {"running": "green", "waiting": "yellow", "away": "red", "silent": "red", "stopped": "dim"}


def receive(args: Namespace) -> int:
    """`onward intake`."""
    screen = Screen(args)
    app = connect.load_app(args)
    screen.json |= app.settings.log == "json"
    if args.metrics_port is not None:
        app.settings = dataclasses.replace(app.settings, metrics_port=args.metrics_port)
    with asyncio.Runner(loop_factory=loop_factory()) as runner, log_lines(screen):
        return runner.run(_receive(screen, app))


async def _receive(screen: Screen, app: Onward) -> int:
    settings, stop = app.settings, asyncio.Event()
    metrics = exposed(
        app.service.standing, settings.metrics_host, settings.metrics_port, settings.tls_cert, settings.tls_key
    )
    with stop_on_signals(stop):
        async with metrics, app.intakes() as running, _status_line(screen, running):
            if not running.specs:
                raise UsageError(f"{app.store.where}: this app has no intakes; app.intake(NAME, from_=…) declares one")
            sources = ", ".join(f"{spec.name} from {spec.source}" for spec in running.specs)
            print_event(screen, "ready", f"receiving {sources} on {app.store.where}")
            await stop.wait()
            print_event(screen, "stopping", "messages under way are committed; a second signal exits at once")
        print_event(screen, "stopped", f"{count(running.taken, 'message')} taken, {count(running.dead, 'dead letter')}")
    return 0


@contextlib.asynccontextmanager
async def _status_line(screen: Screen, running: Intakes) -> AsyncIterator[None]:
    """Show a line at the bottom of a terminal with the state of the intakes."""
    if not screen.live:
        yield
        return
    spinner, began = Spinner("dots", style="cyan"), time.monotonic()

    def line() -> Spinner:
        rate = running.taken / max(time.monotonic() - began, 1.0)
        states = ", ".join(f"{safe(name)} {state}" for name, state in running.states.items())
        text = f"{states} · {count(running.taken, 'message')} taken, {rate:.1f}/s"
        spinner.update(text=Text(f"{text} · {count(running.dead, 'dead letter')}" if running.dead else text, "dim"))
        return spinner

    with Live(get_renderable=line, console=screen.out, refresh_per_second=8, transient=True):
        yield


async def list_intakes(args: Namespace) -> int:
    """`onward intakes`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        intakes = await connect.everything(backend.intakes)
    now = time.time()
    document = {"intakes": [to_json(intake) for intake in intakes]}
    empty = "no intakes; app.intake(NAME, from_=…) declares one, and a worker or `onward intake MODULE:APP` receives it"
    return screen.table(document, INTAKES, [_cells(intake, now) for intake in intakes], empty)


def _cells(intake: Intake, now: float) -> tuple[Text, ...]:
    redriven = f", {intake.redriven:,} to be redriven" if intake.redriven else ""
    states = [process.state for process in intake.processes]
    others = {state: states.count(state) for state in dict.fromkeys(states)}
    words = ", ".join(f"{number:,} {state}" for state, number in others.items()) if len(states) > 1 else ""
    return (
        Text(safe(intake.name)),
        Text(intake.state, STYLES[intake.state]),
        Text(safe(intake.source)),
        Text(safe(intake.target), "dim"),
        Text(f"{intake.rate:.1f}/s"),
        Text("" if intake.lag is None else f"{intake.lag:,}"),
        Text(f"{intake.dead:,}{redriven}", "red" if intake.dead else ""),
        Text("" if intake.seen_at is None else f"{age(now - intake.seen_at)} ago", "dim"),
        Text(safe(intake.detail or words), "dim"),
    )
