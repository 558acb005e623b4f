"""mcp: an MCP server on stdin and stdout; with an app, also a worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from argparse import Namespace

from onward.app.application import Onward
from onward.cli.args import connect
from onward.cli.args.actor import actor
from onward.cli.commands.worker import log_lines, loop_factory, stop_on_signals
from onward.cli.output.screen import Screen
from onward.core.caller import ANYBODY, SCOPES
from onward.errors import BadSetting


def mcp(args: Namespace) -> int:
    """`onward mcp`."""
    screen = Screen(args)
    if unknown := [scope for scope in args.scopes if scope not in SCOPES]:
        raise BadSetting("--scopes", unknown[0], f"some of {', '.join(SCOPES)}")
    with contextlib.redirect_stdout(sys.stderr):  # output of the app's import must not reach the client
        app = connect.load_app(args)
    with asyncio.Runner(loop_factory=loop_factory()) as runner, log_lines(screen):
        stopped = runner.run(_serve(app, args))
        if stopped:  # a thread still waits for a line of the client, which may never come
            sys.stderr.flush()
            os._exit(0)
    return 0


async def _serve(app: Onward, args: Namespace) -> bool:
    """Serve until the client disconnects. Returns whether a signal stopped it before."""
    local = ANYBODY._replace(scopes=frozenset(args.scopes or SCOPES), name=actor("mcp"))
    server = app.mcp(expose=[*app.settings.mcp_expose.split(), *args.expose], local=local)
    stop = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        await stack.enter_async_context(app)
        if app.handlers and not args.no_worker:
            await stack.enter_async_context(app.worker(slots=args.slots, queues=args.queues))
        serving = asyncio.ensure_future(server.run_stdio_async())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if serving.done():
            serving.result()
    return not serving.done()
