"""The arguments of commands about the place itself: the server and what belongs to it; and of `message`. As light as parser.py."""

from __future__ import annotations

from onward.cli.args.common import Commands, names, port, positive


def serve(commands: Commands) -> None:
    """`onward serve`."""
    parser = commands.add(
        "serve",
        "commands.serve:serve",
        "answer over HTTP, and do tasks, with the handlers of an app",
        "Without an app it serves the demo agent. Without keys it answers this machine\nalone.\n\n"
        "  onward serve\n  onward serve shop.tasks:app --port 8765",
    )
    parser.add_argument(
        "app", metavar="MODULE:APP", nargs="?", help="where the app is, as in `from MODULE import APP`; none: the demo"
    )
    parser.add_argument("--host", metavar="HOST", help="where to listen (ONWARD_HOST, or 127.0.0.1)")
    parser.add_argument("--port", type=port, metavar="N", help="(ONWARD_PORT, or 8765; 0 finds a free one)")
    parser.add_argument("--slots", type=positive, metavar="N", help="how many tasks at once (ONWARD_SLOTS, or 100)")
    parser.add_argument("--queues", type=names, default=(), metavar="A,B", help="only these queues; all when not given")
    parser.add_argument("--no-worker", action="store_true", help="only answer; workers run elsewhere")


def mcp(commands: Commands) -> None:
    """`onward mcp`."""
    parser = commands.add(
        "mcp",
        "commands.mcp:mcp",
        "speak MCP over stdin and stdout, for a client that starts it",
        "With an app it also does tasks. A client's configuration names the command:\n\n"
        '  {"mcpServers": {"onward": {\n    "command": "onward", "args": ["mcp", "shop.tasks:app"]}}}',
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


def deliveries(commands: Commands) -> None:
    """`onward deliveries`."""
    parser = commands.add(
        "deliveries",
        "commands.deliveries:list_deliveries",
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
    verb = verbs.add(
        "redeliver", "commands.deliveries:redeliver", "send it again now, with the same id and the same bytes"
    )
    verb.add_argument("delivery", metavar="ID", help="the delivery, by its id or the first or last characters of it")


def keys(commands: Commands) -> None:
    """`onward keys`."""
    parser = commands.add(
        "keys",
        "commands.keys:list_keys",
        "who may ask over HTTP, and for what",
        "examples:\n"
        "  onward keys create --name ada --scope admin,read,submit,decide\n"
        "  onward keys create --name shop --scope read,submit --tenant acme --expires 90d\n"
        "  onward keys revoke 4k2m8n1p0q7r",
    )
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    verbs.add("list", "commands.keys:list_keys", "all keys, without the keys themselves")
    made = verbs.add("create", "commands.keys:create", "make a key; it is printed this once")
    made.add_argument(
        "--name", required=True, metavar="NAME", help="who has it: this name decides, in journal and audit"
    )
    made.add_argument(
        "--scope",
        required=True,
        action="append",
        type=names,
        metavar="A,B",
        help="read (look), submit (ask for work and steer it), decide (approvals, questions, budgets), admin (run the place)",
    )
    made.add_argument("--tenant", metavar="NAME", help="it sees and makes this tenant's tasks alone")
    made.add_argument(
        "--agent", metavar="NAME", help="an agent's own key: it decides nothing that this agent has a part in"
    )
    made.add_argument("--expires", metavar="TIME", help="as in 90d or 12h; never when not given")
    gone = verbs.add("revoke", "commands.keys:revoke", "let a key open nothing any more")
    gone.add_argument("key", metavar="KEY", help="its id, the first characters of it, or its name")


def audit(commands: Commands) -> None:
    """`onward audit`."""
    parser = commands.add(
        "audit",
        "commands.keys:audit",
        "who did what over HTTP and MCP: keys, decisions, steering, budgets",
        "Keys are written down wherever they are made. What else is typed here is not:\n"
        "whoever can open the database needs no key.\n\n"
        "examples:\n  onward audit --limit 20\n  onward audit verify",
    )
    parser.add_argument("--after", type=int, default=0, metavar="N", help="only entries after this number")
    parser.add_argument("--limit", type=positive, default=100, metavar="N", help="at most so many, the last ones (100)")
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    checked = verbs.add(
        "verify",
        "commands.keys:verify",
        "look whether every entry is as it was written down",
        "Exit status 1 when one is not; the first that is not is named.",
    )
    checked.add_argument(
        "--seen", metavar="HEAD", help="a head that it printed before: is all up to there still there?"
    )


def queues(commands: Commands) -> None:
    """`onward queues`."""
    parser = commands.add(
        "queues",
        "commands.cluster:queues",
        "what is unfinished, by queue; pause one, and let it go on",
        "A paused queue stays so, over all workers and restarts; what runs goes on.\n\n"
        "examples:\n  onward queues\n  onward queues pause mail\n  onward queues unpause mail\n"
        "  onward queues drain mail --wait 5m",
    )
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    for name, sentence in (
        ("pause", "start nothing of it until it is unpaused"),
        ("unpause", "let it go on"),
        ("drain", "pause it, and tell how much of it still runs"),
    ):
        verb = verbs.add(name, f"commands.cluster:{name}", sentence)
        verb.add_argument("name", metavar="NAME", help="the queue, by its name")
    verb.add_argument("--wait", metavar="TIME", nargs="?", help="until none of it runs, for so long or for ever")


def handlers(commands: Commands) -> None:
    """`onward handlers`."""
    parser = commands.add(
        "handlers",
        "commands.handlers:handlers",
        "what can be submitted: names, what they take, who does them",
        "examples:\n  onward handlers\n  onward handlers deploy   with the schema of its input",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="only this one, whole")


def usage(commands: Commands) -> None:
    """`onward usage`."""
    parser = commands.add(
        "usage",
        "commands.usage:usage",
        "what models took: calls, tokens and cost",
        "examples:\n  onward usage --by model\n  onward usage --by day --since 30d",
    )
    parser.add_argument(
        "--by", choices=("agent", "model", "key", "day"), default="agent", help="agent, model, key or day (agent)"
    )
    parser.add_argument("--since", metavar="TIME", help="tasks submitted at or after, as in 2026-11-15, or 2h for ago")
    parser.add_argument("--until", metavar="TIME", help="tasks submitted before")


def workers(commands: Commands) -> None:
    """`onward workers`."""
    commands.add("workers", "commands.cluster:workers", "who works: where, at how many tasks, how fast")


def top(commands: Commands) -> None:
    """`onward top`."""
    parser = commands.add(
        "top",
        "commands.top:top",
        "the place at a glance, live: workers, queues, what runs, what waits for people",
        "q leaves. One frame with --once, with --json, and where there is no terminal.",
    )
    parser.add_argument("--once", action="store_true", help="one frame, and leave")
    parser.add_argument("--every", metavar="TIME", default="2", help="draw it again so often (2), as in 2 or 500ms")


def completion(commands: Commands) -> None:
    """`onward completion`."""
    parser = commands.add(
        "completion",
        "commands.completion:completion",
        "a script that completes commands, options, ids and names in your shell",
        "examples:\n"
        "  source <(onward completion bash)     in ~/.bashrc\n"
        "  source <(onward completion zsh)      in ~/.zshrc, after compinit\n"
        "  onward completion fish > ~/.config/fish/completions/onward.fish",
    )
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def stats(commands: Commands) -> None:
    """`onward stats`."""
    commands.add("stats", "commands.cluster:stats", "how many tasks there are, by state and reason")


def message(commands: Commands) -> None:
    """`onward message`."""
    parser = commands.add_for_one(
        "message",
        "commands.people:message",
        "say something to a task under way",
        "An agent reads it before its next turn; it answers no question and decides\nnothing. A handler that is no agent gets "
        'it as the signal "message".\n\n  onward message 7k2m "Leave the database alone."',
    )
    parser.add_argument("text", metavar="TEXT", help="what to say; - reads it from stdin")
    parser.add_argument("--key", help="the same key is the same message, however often it is sent")
