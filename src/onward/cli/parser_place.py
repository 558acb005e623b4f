"""The arguments of commands about the place itself: the server and what belongs to it. As light as parser.py."""

from __future__ import annotations

from onward.cli.commands import Commands, names, of_app, port, positive


def serve(commands: Commands) -> None:
    """`onward serve`."""
    parser = commands.add(
        "serve",
        "serve:serve",
        "answer over HTTP, and do tasks, with the handlers of an app",
        "Without keys it answers this machine alone.\n\n  onward serve shop.tasks:app --port 8765",
    )
    of_app(parser)
    parser.add_argument("--host", metavar="HOST", help="where to listen (ONWARD_HOST, or 127.0.0.1)")
    parser.add_argument("--port", type=port, metavar="N", help="(ONWARD_PORT, or 8765; 0 finds a free one)")
    parser.add_argument("--slots", type=positive, metavar="N", help="how many tasks at once (ONWARD_SLOTS, or 100)")
    parser.add_argument("--queues", type=names, default=(), metavar="A,B", help="only these queues; all when not given")
    parser.add_argument("--no-worker", action="store_true", help="only answer; workers run elsewhere")


def mcp(commands: Commands) -> None:
    """`onward mcp`."""
    parser = commands.add(
        "mcp",
        "mcp:mcp",
        "speak MCP over stdin and stdout, for a client that starts it",
        "With an app it also does tasks. A client's configuration names the command:\n\n"
        '  {"mcpServers": {"onward": {"command": "onward", "args": ["mcp", "shop.tasks:app"]}}}',
    )
    parser.add_argument(
        "app",
        metavar="MODULE:APP",
        nargs="?",
        help="where the app is, as in `from MODULE import APP`; none: only a door",
    )
    parser.add_argument(
        "--expose", type=names, default=(), metavar="A,B", help="handlers and agents that are tools of their own"
    )
    parser.add_argument(
        "--scopes", type=names, default=(), metavar="A,B", help="only read, submit, decide, admin; all when not given"
    )
    parser.add_argument("--slots", type=positive, metavar="N", help="how many tasks at once (ONWARD_SLOTS, or 100)")
    parser.add_argument("--queues", type=names, default=(), metavar="A,B", help="only these queues; all when not given")
    parser.add_argument("--no-worker", action="store_true", help="only answer; workers run elsewhere")
