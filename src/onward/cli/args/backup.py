"""The arguments of `onward backup`, `onward restore` and `onward doubts`."""

from __future__ import annotations

from onward.cli.args.common import Commands, positive


def backup(commands: Commands) -> None:
    """`onward backup`."""
    parser = commands.add(
        "backup",
        "commands.backup:backup",
        "copy the database and its artifacts into a folder, as of one moment",
        "Workers and servers may run meanwhile. The folder gets its name when the backup\n"
        "is whole. Master keys of encrypted payloads are not in it: keep them elsewhere.\n\n"
        "examples:\n  onward backup /backups/2026-11-18\n  onward backup /backups/nightly --no-artifacts",
        local="it copies the database and the artifacts into a folder of this machine",
    )
    parser.add_argument("folder", metavar="FOLDER", help="the folder to write; it must not exist yet")
    parser.add_argument(
        "--no-artifacts",
        action="store_true",
        help="leave out artifacts in a folder or bucket (ONWARD_ARTIFACTS), which you back up yourself",
    )


def restore(commands: Commands) -> None:
    """`onward restore`."""
    parser = commands.add(
        "restore",
        "commands.backup:restore",
        "put a backup in place, and begin a new epoch",
        "The backup is verified first. Processes that had the database open cannot write\n"
        "any more: restart them. Effects that may have happened after the backup are in\n"
        "doubt; `onward doubts` lists them.\n\n"
        "examples:\n"
        "  onward restore /backups/2026-11-18 --db sqlite:///new.db\n"
        "  onward restore /backups/2026-11-18 --overwrite\n"
        "  onward restore --here      after a restore with other tools, as of pg_dump",
        local="it replaces the database, and ends the epoch of the server",
    )
    parser.add_argument("folder", metavar="FOLDER", nargs="?", help="the folder that `onward backup` wrote")
    parser.add_argument("--overwrite", action="store_true", help="replace the database that is there")
    parser.add_argument(
        "--here",
        action="store_true",
        help="copy nothing: the database was put back by other means (a snapshot, a replica); begin a new epoch in it",
    )


def doubts(commands: Commands) -> None:
    """`onward doubts`."""
    parser = commands.add(
        "doubts",
        "commands.backup:doubts",
        "list effects in doubt, and tasks that a restore took back",
        "An effect is in doubt when its worker died, or when it may have happened after\n"
        "the backup that was restored. `onward resolve ID` settles it.",
    )
    parser.add_argument("--limit", type=positive, default=100, metavar="N", help="list at most N of each (100)")
