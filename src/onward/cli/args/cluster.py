"""Arguments of the commands about the server and the cluster, and of `message`. Imports as little as parser.py."""

from __future__ import annotations

from onward.cli.args.common import Commands, names, of_app, port, positive


def serve(commands: Commands) -> None:
    """`onward serve`."""
    parser = commands.add(
        "serve",
        "commands.serve:serve",
        "run the HTTP server and a worker for the handlers of an app",
        "Without an app it serves the demo agent. While no key exists, it accepts\nrequests from this machine only.\n\n"
        "  onward serve\n  onward serve shop.tasks:app --port 8765",
        local="it is the server itself, and runs on the database",
    )
    parser.add_argument(
        "app",
        metavar="MODULE:APP",
        nargs="?",
        help="the app to load, as in `from MODULE import APP`; without it, the demo",
    )
    parser.add_argument("--host", metavar="HOST", help="the address to listen at (ONWARD_HOST, or 127.0.0.1)")
    parser.add_argument(
        "--port", type=port, metavar="N", help="the port to listen at (ONWARD_PORT, or 8765); 0 takes a free one"
    )
    parser.add_argument(
        "--slots", type=positive, metavar="N", help="tasks that run at the same time (ONWARD_SLOTS, or 100)"
    )
    parser.add_argument("--queues", type=names, default=(), metavar="A,B", help="take tasks of these queues only (all)")
    parser.add_argument("--no-worker", action="store_true", help="run no worker; workers run elsewhere")
    parser.add_argument("--no-intake", action="store_true", help="receive no messages of brokers; others do")
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="serve HTTPS with this certificate chain, in PEM (ONWARD_TLS_CERT)"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="the key of the certificate, in PEM (ONWARD_TLS_KEY)")


def dev(commands: Commands) -> None:
    """`onward dev`."""
    parser = commands.add(
        "dev",
        "commands.dev:dev",
        "for development: server, worker and console of an app, started anew at changes",
        "It watches the folder in which you start it. Tasks go on with the new code.\n\n  onward dev shop.tasks:app",
        local="it runs your code here, on the database",
    )
    of_app(parser)
    parser.add_argument("--port", type=port, metavar="N", help="the port to listen at (ONWARD_PORT, or 8765)")


def mcp(commands: Commands) -> None:
    """`onward mcp`."""
    parser = commands.add(
        "mcp",
        "commands.mcp:mcp",
        "run an MCP server on stdin and stdout, for a client that starts it",
        "With an app it also runs a worker. The client's configuration has the command:\n\n"
        '  {"mcpServers": {"onward": {\n    "command": "onward", "args": ["mcp", "shop.tasks:app"]}}}',
        local="it runs on the database; the server itself speaks MCP, at the path /mcp",
    )
    parser.add_argument(
        "app",
        metavar="MODULE:APP",
        nargs="?",
        help="the app to load, as in `from MODULE import APP`; without it, no worker runs",
    )
    parser.add_argument(
        "--expose", type=names, default=(), metavar="A,B", help="handlers and agents to offer as MCP tools"
    )
    parser.add_argument(
        "--scopes",
        type=names,
        default=(),
        metavar="A,B",
        help="allow only these scopes: read, submit, decide, admin (all)",
    )
    parser.add_argument(
        "--slots", type=positive, metavar="N", help="tasks that run at the same time (ONWARD_SLOTS, or 100)"
    )
    parser.add_argument("--queues", type=names, default=(), metavar="A,B", help="take tasks of these queues only (all)")
    parser.add_argument("--no-worker", action="store_true", help="run no worker; workers run elsewhere")


def deliveries(commands: Commands) -> None:
    """`onward deliveries`."""
    parser = commands.add(
        "deliveries",
        "commands.deliveries:list_deliveries",
        "list events sent to webhooks and functions, and their results",
        "examples:\n"
        "  onward deliveries --failed\n"
        "  onward deliveries redeliver ID   sends it again now, with the same id",
    )
    parser.add_argument("--failed", action="store_true", help="only deliveries that failed for good")
    parser.add_argument("--pending", action="store_true", help="only deliveries that are still to be sent")
    parser.add_argument("--task", metavar="ID", help="only deliveries of this task")
    parser.add_argument("--limit", type=positive, default=20, metavar="N", help="list at most N (20)")
    parser.add_argument("--cursor", help="list the next page: the cursor that the page before printed")
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    verb = verbs.add(
        "redeliver", "commands.deliveries:redeliver", "send a delivery again now, with the same id and the same bytes"
    )
    verb.add_argument("delivery", metavar="ID", help="the id of the delivery, or its first or last characters")


def intake(commands: Commands) -> None:
    """`onward intake`."""
    parser = commands.add(
        "intake",
        "commands.intake:receive",
        "receive the messages of brokers for an app; its workers run elsewhere",
        "Workers and `onward serve` receive messages too, unless --no-intake is given. On\nSIGTERM or Ctrl-C it commits the "
        "messages that it has, and receives no more.\n\n  onward intake shop.tasks:app",
        local="an intake runs your code here, and writes tasks to the database",
    )
    of_app(parser)
    parser.add_argument(
        "--metrics-port",
        type=port,
        metavar="N",
        help="serve /metrics at this port (ONWARD_METRICS_PORT, or not at all)",
    )


def intakes(commands: Commands) -> None:
    """`onward intakes`."""
    commands.add("intakes", "commands.intake:list_intakes", "list intakes: state, rate, lag and dead letters")


def dead(commands: Commands) -> None:
    """`onward dead`."""
    parser = commands.add(
        "dead",
        "commands.dead:list_letters",
        "list messages that could not become tasks; redrive or drop them",
        "examples:\n"
        "  onward dead                   the newest dead letters of all intakes\n"
        "  onward dead list orders       those of one intake\n"
        "  onward dead show 7k2m         with headers and body\n"
        "  onward dead redrive orders    tries them again, after you fixed the cause\n"
        "  onward dead drop 7k2m         deletes one for good",
    )
    parser.set_defaults(intake=None, limit=20, cursor=None)
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    listing = verbs.add("list", "commands.dead:list_letters", "list the dead letters of an intake, or of all")
    listing.add_argument("intake", metavar="NAME", nargs="?", help="only those of this intake")
    listing.add_argument("--limit", type=positive, default=20, metavar="N", help="list at most N (20)")
    listing.add_argument("--cursor", help="list the next page: the cursor that the page before printed")
    show = verbs.add("show", "commands.dead:show", "show a dead letter with its headers and its body")
    show.add_argument("letter", metavar="ID", help="the id of the dead letter, or its first or last characters")
    show.add_argument("--body", action="store_true", help="print the bytes of the body and nothing else")
    redrive = verbs.add(
        "redrive",
        "commands.dead:redrive",
        "try dead letters again: one, those of an intake, or all",
        "A letter that becomes a task is deleted. Another one stays, with its new reason.",
    )
    drop = verbs.add(
        "drop",
        "commands.dead:drop",
        "delete dead letters for good: one, those of an intake, or all",
        "With a name or --all it shows the number of letters and asks for confirmation,\nunless --yes is given.",
    )
    for verb in (redrive, drop):
        verb.add_argument(
            "letters",
            metavar="NAME|ID",
            nargs="?",
            help="the name of an intake, or the id of a dead letter or its first or last characters",
        )
        verb.add_argument("--all", action="store_true", help="all dead letters of all intakes")
    drop.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def keys(commands: Commands) -> None:
    """`onward keys`."""
    parser = commands.add(
        "keys",
        "commands.keys:list_keys",
        "list, create and revoke API keys",
        "examples:\n"
        "  onward keys create --name ada --scope admin,read,submit,decide\n"
        "  onward keys create --name shop --scope read,submit --tenant acme --expires 90d\n"
        "  onward keys revoke 4k2m8n1p0q7r",
    )
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    verbs.add("list", "commands.keys:list_keys", "list all keys; the secret part is not stored")
    create = verbs.add("create", "commands.keys:create", "create a key; it is printed only this once")
    create.add_argument(
        "--name", required=True, metavar="NAME", help="the holder of the key, as journals and the audit log name it"
    )
    create.add_argument(
        "--scope",
        required=True,
        action="append",
        type=names,
        metavar="A,B",
        help="read (look), submit (submit and control tasks), decide (approvals, questions, budgets), admin (everything else)",
    )
    create.add_argument("--tenant", metavar="NAME", help="limit the key to the tasks of this tenant")
    create.add_argument(
        "--agent", metavar="NAME", help="an agent's own key: it cannot decide on anything that this agent takes part in"
    )
    create.add_argument(
        "--owner",
        metavar="PERSON",
        help="the key is of this person (person:ID): approval rules count both as one caller",
    )
    create.add_argument("--expires", metavar="TIME", help="the key expires after this time, as in 90d or 12h (never)")
    revoke = verbs.add("revoke", "commands.keys:revoke", "revoke a key: requests with it are refused from now on")
    revoke.add_argument("key", metavar="KEY", help="the id of the key, its first characters, or its name")


def sessions(commands: Commands) -> None:
    """`onward sessions`."""
    parser = commands.add(
        "sessions",
        "commands.sessions:list_sessions",
        "list and revoke the sessions of people who signed in",
        "People sign in with the identity provider of ONWARD_OIDC_ISSUER.\n\n"
        "examples:\n"
        "  onward sessions\n"
        "  onward sessions revoke 4k2m8n1p0q7r\n"
        "  onward sessions revoke ada@example.com   ends all sessions of that person",
    )
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    verbs.add("list", "commands.sessions:list_sessions", "list the sessions that have not ended")
    revoke = verbs.add("revoke", "commands.sessions:revoke", "end sessions: requests with them are refused from now on")
    revoke.add_argument(
        "session", metavar="SESSION", help="the id of a session, its first characters, or the name or id of a person"
    )


def quotas(commands: Commands) -> None:
    """`onward quotas`."""
    parser = commands.add(
        "quotas",
        "commands.quotas:list_quotas",
        "list the quotas of tenants and their use, and set them",
        "The settings ONWARD_QUOTA_… hold for tenants without quotas of their own. 0 is\n"
        "no quota, except for the priority. Requests, streams and sessions are counted in\n"
        "each server process: GET /api/quotas of the server shows them.\n\n"
        "examples:\n  onward quotas\n  onward quotas set acme --requests 500 --priority 10\n  onward quotas reset acme",
    )
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    verbs.add("list", "commands.quotas:list_quotas", "list the quotas of all tenants")
    change = verbs.add(
        "set", "commands.quotas:set_quota", "give a tenant quotas of its own; the others stay as they are"
    )
    change.add_argument("tenant", metavar="TENANT", help="the name of the tenant")
    for flag, text in (
        ("requests", "requests a second with all its keys together"),
        ("key-requests", "requests a second with each of its keys"),
        ("streams", "streams, sockets, held responses and MCP requests that are open at once"),
        ("sessions", "MCP sessions"),
        ("queue-share", "percent of the length of a queue that its tasks may fill"),
        ("tasks", "unfinished tasks in all queues"),
        ("queues", "queues in which its unfinished tasks are"),
        ("running", "percent of the slots of each worker that its tasks may hold"),
        ("messages", "messages that one of its tasks may get"),
        ("keys", "valid keys"),
        ("subscriptions", "subscriptions"),
        ("priority", "the highest priority that it may give a task"),
        ("refused", "refused calls of one key that the audit log records in a minute"),
    ):
        change.add_argument(f"--{flag}", type=int, metavar="N", help=text)
    reset = verbs.add("reset", "commands.quotas:reset", "give a tenant the quotas of the settings again")
    reset.add_argument("tenant", metavar="TENANT", help="the name of the tenant")


def locks(commands: Commands) -> None:
    """`onward locks`."""
    parser = commands.add(
        "locks",
        "commands.locks:list_locks",
        "list the locks of tasks and programs, and take one from its holder",
        "A lock is listed while a task or a program holds it, or waits for it.\n\n"
        "examples:\n  onward locks\n  onward locks release deploy:web --reason 'the deploy hangs'",
    )
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    verbs.add("list", "commands.locks:list_locks", "list the locks that are held or waited for")
    release = verbs.add(
        "release",
        "commands.locks:release",
        "take a lock from its holder, and let the next one in",
        "The holder is not stopped; its token stays smaller than that of the next one.\n"
        "Cancel or pause its task first. The audit log has the reason.",
    )
    release.add_argument("name", metavar="NAME", help="the name of the lock")
    release.add_argument("--reason", required=True, metavar="TEXT", help="why; the audit log keeps it")
    release.add_argument("--tenant", metavar="NAME", help="the tenant whose lock it is")


def audit(commands: Commands) -> None:
    """`onward audit`."""
    parser = commands.add(
        "audit",
        "commands.keys:audit",
        "list the audit log: decisions, and changes to keys, quotas and tasks",
        "The log has every change to a key. Of other changes it has those made over HTTP\n"
        "and MCP, not those made on the command line, which needs no key.\n\n"
        "examples:\n  onward audit --limit 20\n  onward audit verify",
    )
    parser.add_argument("--after", type=int, default=0, metavar="N", help="only entries after number N")
    parser.add_argument("--limit", type=positive, default=100, metavar="N", help="list the last N entries (100)")
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    verify = verbs.add(
        "verify",
        "commands.keys:verify",
        "check that no entry of the audit log was changed or removed",
        "Exit status 1 if one was, or if a key is missing to check it.\n"
        "Without --head it reads the files of ONWARD_AUDIT_HEADS.",
    )
    verify.add_argument(
        "--head",
        "--seen",
        dest="heads",
        metavar="HEAD",
        action="append",
        help="a head that was printed or exported before, or @FILE with exported heads: check that no entry up to it is missing "
        "or another one; may be given several times",
    )


def queues(commands: Commands) -> None:
    """`onward queues`."""
    parser = commands.add(
        "queues",
        "commands.cluster:queues",
        "list queues with their unfinished tasks; pause, unpause or drain a queue",
        "Workers start no tasks of a paused queue, also after a restart. Tasks that run\ncontinue.\n\n"
        "examples:\n  onward queues\n  onward queues pause mail\n  onward queues unpause mail\n"
        "  onward queues drain mail --wait 5m",
    )
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    for name, sentence in (
        ("pause", "pause a queue: workers start none of its tasks until it is unpaused"),
        ("unpause", "unpause a queue: workers start its tasks again"),
        ("drain", "pause a queue, and print how many of its tasks still run"),
    ):
        verb = verbs.add(name, f"commands.cluster:{name}", sentence)
        verb.add_argument("name", metavar="NAME", help="the name of the queue")
    verb.add_argument(
        "--wait", metavar="TIME", nargs="?", help="wait until none of its tasks runs, at most TIME (no limit)"
    )


def handlers(commands: Commands) -> None:
    """`onward handlers`."""
    parser = commands.add(
        "handlers",
        "commands.handlers:handlers",
        "list handlers: names, input, and workers that have them",
        "examples:\n  onward handlers\n  onward handlers deploy   with the schema of its input",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="show this handler, with the schema of its input")


def usage(commands: Commands) -> None:
    """`onward usage`."""
    parser = commands.add(
        "usage",
        "commands.usage:usage",
        "report model usage: calls, tokens and cost",
        "examples:\n  onward usage --by model\n  onward usage --by day --since 30d",
    )
    parser.add_argument(
        "--by",
        choices=("agent", "model", "key", "day"),
        default="agent",
        help="group by agent, model, key or day (agent)",
    )
    parser.add_argument(
        "--since", metavar="TIME", help="tasks submitted at or after TIME, such as 2026-11-15, or 2h for 2 hours ago"
    )
    parser.add_argument("--until", metavar="TIME", help="tasks submitted before TIME")


def workers(commands: Commands) -> None:
    """`onward workers`."""
    commands.add("workers", "commands.cluster:workers", "list workers: host, running tasks and rate")


def versions(commands: Commands) -> None:
    """`onward versions`."""
    commands.add(
        "versions",
        "commands.cluster:versions",
        "list versions of the code: their workers and unfinished tasks",
    )


def top(commands: Commands) -> None:
    """`onward top`."""
    parser = commands.add(
        "top",
        "commands.top:top",
        "show workers, queues, running tasks and tasks that wait for people, live",
        "q quits. With --once, with --json, or without a terminal it prints one frame.",
    )
    parser.add_argument("--once", action="store_true", help="print one frame and exit")
    parser.add_argument("--every", metavar="TIME", default="2", help="time between two frames, as in 2 or 500ms (2)")


def completion(commands: Commands) -> None:
    """`onward completion`."""
    parser = commands.add(
        "completion",
        "commands.completion:completion",
        "print a script that completes commands, options, ids and names in your shell",
        "examples:\n"
        "  source <(onward completion bash)     in ~/.bashrc\n"
        "  source <(onward completion zsh)      in ~/.zshrc, after compinit\n"
        "  onward completion fish > ~/.config/fish/completions/onward.fish",
    )
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def stats(commands: Commands) -> None:
    """`onward stats`."""
    commands.add("stats", "commands.cluster:stats", "count tasks by state and reason")


def message(commands: Commands) -> None:
    """`onward message`."""
    parser = commands.add_for_task(
        "message",
        "commands.people:message",
        "send a message to a task that has not ended",
        "An agent reads it before its next turn. It answers no question and decides no\napproval. A handler that is no agent "
        'receives it as the signal "message".\n\n  onward message 7k2m "Leave the database alone."',
    )
    parser.add_argument("text", metavar="TEXT", help="the message; - reads it from stdin")
    parser.add_argument("--key", help="messages with the same key count once")
