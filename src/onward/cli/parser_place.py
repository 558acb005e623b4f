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


def deliveries(commands: Commands) -> None:
    """`onward deliveries`."""
    parser = commands.add(
        "deliveries",
        "deliveries:list_deliveries",
        "events on their way out: webhooks and functions, and what came of them",
        "examples:\n"
        "  onward deliveries --failed\n"
        "  onward deliveries redeliver ID   sends it again now, with the same id",
    )
    parser.add_argument("--failed", action="store_true", help="only what was given up")
    parser.add_argument("--pending", action="store_true", help="only what is still to be sent")
    parser.add_argument("--task", metavar="ID", help="only those of this task")
    parser.add_argument("--limit", type=positive, default=20, metavar="N", help="how many (20)")
    parser.add_argument("--cursor", help="go on where the page before ended")
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    verb = verbs.add("redeliver", "deliveries:redeliver", "send it again now, with the same id and the same bytes")
    verb.add_argument("delivery", metavar="ID", help="the delivery, by its whole id")
