"""Completion: the words that could stand where the cursor is. The shell runs this at every Tab, so it imports very little: commands
and options come from the parser, ids and names from one statement on the database (suggest.py)."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from onward.cli.args import parser as arguments
from onward.cli.backend.target import URL

STATES = ("pending", "running", "waiting", "completed", "failed", "cancelled")
REASONS = (
    "queued", "delayed", "running", "retrying", "cancelling", "asleep", "signal", "question", "approval", "child", "in_doubt",
    "paused", "parked", "quarantined", "quota", "budget", "lock",
)  # fmt: skip
"""The reasons of core/task.py, repeated here to save its import; a test compares them."""

MAX_SHOWN = 50
_APP = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*(?:onward\.)?Onward\(", re.MULTILINE)


class Candidate(NamedTuple):
    """A word with its description."""

    value: str
    about: str = ""


def main(words: Sequence[str]) -> int:
    """`onward __complete SHELL WORDS…`; bash gives the line up to the cursor as one word."""
    shell, *rest = words or ["bash"]
    if shell == "bash":
        rest = _split(rest[0] if rest else "")
    word = rest[-1] if rest else ""
    for candidate in candidates(rest or [""]):
        print(_FORMATS.get(shell, _fish)(candidate, word))
    return 0


def _split(line: str) -> list[str]:
    """The words after `onward`, the last being the one under the cursor."""
    for closing in ("", "'", '"'):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        return [*words[1:], ""] if line[-1:].isspace() and not closing else words[1:]
    return []


def _bash(candidate: Candidate, word: str) -> str:
    """Bash splits words at ":" and "=", and takes only the last part."""
    return candidate.value[max(word.rfind(":"), word.rfind("=")) + 1 :]


def _zsh(candidate: Candidate, _: str) -> str:
    value = candidate.value.replace("\\", "\\\\").replace(":", "\\:")
    return f"{value}:{candidate.about}" if candidate.about else value


def _fish(candidate: Candidate, _: str) -> str:
    return f"{candidate.value}\t{candidate.about}" if candidate.about else candidate.value


_FORMATS: dict[str, Callable[[Candidate, str], str]] = {"bash": _bash, "zsh": _zsh}


# ── where the cursor is ──────────────────────────────────────────────────────────────────────────────────────────────


class _Cursor(NamedTuple):
    """The place of the word to complete."""

    parser: argparse.ArgumentParser
    path: tuple[str, ...]
    action: argparse.Action | None
    """The option whose value the user types."""
    given: int
    """Positional arguments before the cursor."""
    db: str | None
    url: bool = False
    """Whether the line has --url."""


def candidates(words: Sequence[str]) -> list[Candidate]:
    """Words that could replace the last word."""
    cursor, word = _cursor(words[:-1]), words[-1]
    option, equals, value = word.partition("=")
    if equals and option.startswith("--") and (action := _option(cursor.parser, option)) is not None:
        choices = [Candidate(f"{option}={choice.value}", choice.about) for choice in _values(cursor, action, value)]
    elif cursor.action is not None:
        choices = list(_values(cursor, cursor.action, word))
    elif word.startswith("-"):
        choices = list(_options(cursor.parser))
    else:
        choices = list(_positional(cursor, word))
    return [choice for choice in dict.fromkeys(choices) if choice.value.startswith(word)]


def _cursor(words: Sequence[str]) -> _Cursor:
    cursor = _Cursor(arguments.build(), (), None, 0, None)
    for word in words:
        if cursor.action is not None:
            is_url = cursor.url or cursor.action.dest == "url"
            cursor = cursor._replace(action=None, db=word if cursor.action.dest == "db" else cursor.db, url=is_url)
        elif word.startswith("--"):
            option, equals, value = word.partition("=")
            action = _option(cursor.parser, option)
            if equals and option in {"--db", "--url"}:
                cursor = cursor._replace(db=value) if option == "--db" else cursor._replace(url=True)
            elif action is not None and action.nargs != 0 and not equals:
                cursor = cursor._replace(action=action)
        else:
            below = _commands(cursor.parser).get(word)
            cursor = (
                cursor._replace(parser=below, path=(*cursor.path, word), given=0)
                if below
                else cursor._replace(given=cursor.given + 1)
            )
    return cursor


def _option(parser: argparse.ArgumentParser, name: str) -> argparse.Action | None:
    return next((action for action in parser._actions if name in action.option_strings), None)


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


# ── the candidates ───────────────────────────────────────────────────────────────────────────────────────────────────


def _options(parser: argparse.ArgumentParser) -> Iterator[Candidate]:
    for action in parser._actions:
        for name in action.option_strings:
            if name.startswith("--"):
                yield Candidate(name, action.help or "")


def _positional(cursor: _Cursor, word: str) -> Iterator[Candidate]:
    for action in cursor.parser._actions:
        if isinstance(action, argparse._SubParsersAction) and cursor.given == 0:
            for choice in action._choices_actions:
                yield Candidate(str(choice.dest), choice.help or "")
    plain = [
        a for a in cursor.parser._actions if not a.option_strings and not isinstance(a, argparse._SubParsersAction)
    ]
    if cursor.given < len(plain):
        yield from _values(cursor, plain[cursor.given], word)


def _values(cursor: _Cursor, action: argparse.Action, word: str) -> Iterator[Candidate]:
    command, dest = cursor.path[0] if cursor.path else "", action.dest
    if action.choices is not None:
        yield from (Candidate(str(choice)) for choice in action.choices)
    elif dest == "state":
        yield from map(Candidate, STATES)
    elif dest == "reason" and command not in {"approve", "deny"}:
        yield from map(Candidate, REASONS)
    elif dest == "app":
        yield from _apps()
    elif dest == "verdict":
        yield from map(Candidate, ("happened", "not_happened", "nothing_happened", "undo"))
    elif dest in {"queue", "queues"} or (command, dest) == ("queues", "name"):
        yield from _from_database(cursor, "suggest_queues")
    elif command == "dead" and dest in {"intake", "letters"}:
        yield from _from_database(cursor, "suggest_intakes")
        yield from _ids(_from_database(cursor, "suggest_letters"), word) if dest == "letters" else ()
    elif command == "dead" and dest == "letter":
        yield from _ids(_from_database(cursor, "suggest_letters"), word)
    elif (command, dest) == ("schedules", "name"):
        yield from _from_database(cursor, "suggest_schedules")
    elif dest == "name" and command not in {"keys", "signal"}:
        yield from _from_database(cursor, "suggest_handlers")
    elif command in _WAITS and dest == "id":
        yield from _ids(_from_database(cursor, "suggest_waiting", reason=_WAITS[command]), word)
    elif dest in {"id", "parent"} or (command, dest) in {("submit", "after"), ("deliveries", "task")}:
        yield from _ids(_from_database(cursor, "suggest_tasks"), word)


_WAITS = {"approve": "approval", "deny": "approval", "answer": "question", "resolve": "in_doubt"}


def _from_database(cursor: _Cursor, statement: str, **values: str) -> list[Candidate]:
    """Suggestions of the database; none where the command asks a server, whose ids and names are others."""
    if cursor.url or (cursor.db is None and os.environ.get(URL)):
        return []
    from onward.cli.args.suggest import query  # noqa: PLC0415 -- imports a database driver

    return [Candidate(value, about) for value, about in query(cursor.db, statement, limit=MAX_SHOWN * 20, **values)]


def _ids(tasks: list[Candidate], word: str) -> Iterator[Candidate]:
    """Users type the first or the last characters of an id; a table shows the last eight."""
    short_and_whole = [(Candidate(task.value[-8:], task.about), *([task] if word else [])) for task in tasks]
    matching = [task for forms in short_and_whole for task in forms if task.value.startswith(word)]
    yield from matching[:MAX_SHOWN]


def _apps() -> Iterator[Candidate]:
    """The apps that modules of the current folder define, found without importing them."""
    for path in sorted(Path().glob("*.py"))[:MAX_SHOWN]:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        yield from (Candidate(f"{path.stem}:{name}") for name in _APP.findall(text))
