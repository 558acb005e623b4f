"""The arguments of `onward encryption` and `onward erase`."""

from __future__ import annotations

from onward.cli.args.common import Commands


def encryption(commands: Commands) -> None:
    """`onward encryption`."""
    parser = commands.add(
        "encryption",
        "commands.encryption:status",
        "show the keys of encrypted payloads, and change the master key",
        "Payloads are encrypted when ONWARD_ENCRYPTION_KEYS is set. To change the master\n"
        "key, add the new one as the second key of all processes, then make it the first,\n"
        "then run `onward encryption rotate`, then remove the old one.\n\n"
        "examples:\n  onward encryption\n  onward encryption new-key 2026-11\n  onward encryption rotate",
    )
    verbs = Commands(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    verbs.add("status", "commands.encryption:status", "show which master keys are in use")
    new_key = verbs.add("new-key", "commands.encryption:new_key", "print a new master key; it is stored nowhere")
    new_key.add_argument("id", metavar="ID", help="the id of the key, such as a date; it is not secret")
    rotate = verbs.add(
        "rotate",
        "commands.encryption:rotate",
        "wrap all data keys anew with the first master key",
        "Workers may run meanwhile. Run it again when it was interrupted.",
        local="it needs the master keys (ONWARD_ENCRYPTION_KEYS), and changes every data key of the database",
    )
    rotate.add_argument(
        "--data-keys", action="store_true", help="also begin new data keys for what is written from now on"
    )
    seal = verbs.add(
        "seal",
        "commands.encryption:seal",
        "encrypt the payloads that were written before encryption was on",
        "Workers and servers may run meanwhile; all of them must have the keys. Run it\n"
        "again when it was interrupted. With roles of PostgreSQL, run it as the owner of\n"
        "the tables.\n\n"
        "examples:\n  onward encryption seal",
        local="it needs the master keys (ONWARD_ENCRYPTION_KEYS), and rewrites every payload of the database",
    )
    seal.add_argument(
        "--after", metavar="TASK", default="", help="go on after this task, the last one that was reported"
    )


def erase(commands: Commands) -> None:
    """`onward erase`."""
    parser = commands.add(
        "erase",
        "commands.encryption:erase",
        "destroy the data keys of a tenant or a person: their payloads become unreadable",
        "It cannot be undone. It takes half a minute, until every process has noticed.\n"
        "Names, labels, times and the number of records stay. Backups have the keys of\n"
        "their time.\n\n"
        "examples:\n  onward erase --tenant acme\n  onward erase --label person=u-17 --force",
        local="what it erases is lost for good, so no key of a server is enough for it",
    )
    parser.add_argument("--tenant", metavar="TENANT", help="erase the payloads of this tenant")
    parser.add_argument(
        "--label", metavar="NAME=VALUE", help="erase the payloads of tasks with this label (ONWARD_ENCRYPTION_LABEL)"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="cancel unfinished tasks and remove schedules first; without it they are a refusal",
    )
