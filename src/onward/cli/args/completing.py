"""What could stand where the cursor is. It is asked at every Tab, so it imports next to nothing: commands and options come from the
parser, ids and names from one statement on the database (suggest.py)."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from onward.cli.args import parser as arguments

STATES = ("pending", "running", "waiting", "completed", "failed", "cancelled")
REASONS = (
    "queued", "delayed", "running", "retrying", "cancelling", "asleep", "signal", "question", "approval", "child", "in_doubt",
    "paused", "parked", "quarantined", "quota", "budget",
)  # fmt: skip
"""As in core/task.py, which need not be imported for this; a test compares them."""

MOST = 50
_APP = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*(?:onward\.)?Onward\(", re.MULTILINE)


class Candidate(NamedTuple):
    """A word, and what it is."""

    value: str
    about: str = ""


def main(words: Sequence[str]) -> int:
    """`onward __complete SHELL WORDS…`; bash gives the line up to the cursor as one word."""
    shell, *rest = words or ["bash"]
    if shell == "bash":
        rest = _split(rest[0] if rest else "")
    word = rest[-1] if rest else ""
    for one in candidates(rest or [""]):
        print(_SHOWN.get(shell, _fish)(one, word))
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


def _bash(one: Candidate, word: str) -> str:
    """Bash takes words apart at these, and wants the last part alone."""
    return one.value[max(word.rfind(":"), word.rfind("=")) + 1 :]


def _zsh(one: Candidate, _: str) -> str:
    value = one.value.replace("\\", "\\\\").replace(":", "\\:")
    return f"{value}:{one.about}" if one.about else value


def _fish(one: Candidate, _: str) -> str:
    return f"{one.value}\t{one.about}" if one.about else one.value


_SHOWN: dict[str, Callable[[Candidate, str], str]] = {"bash": _bash, "zsh": _zsh}


# ── where the cursor is ──────────────────────────────────────────────────────────────────────────────────────────────


class _Place(NamedTuple):
    parser: argparse.ArgumentParser
    path: tuple[str, ...]
    action: argparse.Action | None
    """The option whose value is typed."""
    given: int
    """Positional words before it."""
    db: str | None


def candidates(words: Sequence[str]) -> list[Candidate]:
    """What could stand in the place of the last word."""
    place, word = _place(words[:-1]), words[-1]
    option, equals, value = word.partition("=")
    if equals and option.startswith("--") and (action := _option(place.parser, option)) is not None:
        found = [Candidate(f"{option}={one.value}", one.about) for one in _values(place, action, value)]
    elif place.action is not None:
        found = list(_values(place, place.action, word))
    elif word.startswith("-"):
        found = list(_options(place.parser))
    else:
        found = list(_positional(place, word))
    return [one for one in dict.fromkeys(found) if one.value.startswith(word)]


def _place(words: Sequence[str]) -> _Place:
    place = _Place(arguments.build(), (), None, 0, None)
    for word in words:
        if place.action is not None:
            place = place._replace(action=None, db=word if place.action.dest == "db" else place.db)
        elif word.startswith("--"):
            option, equals, value = word.partition("=")
            action = _option(place.parser, option)
            if equals and option == "--db":
                place = place._replace(db=value)
            elif action is not None and action.nargs != 0 and not equals:
                place = place._replace(action=action)
        else:
            below = _commands(place.parser).get(word)
            place = (
                place._replace(parser=below, path=(*place.path, word), given=0)
                if below
                else place._replace(given=place.given + 1)
            )
    return place


def _option(parser: argparse.ArgumentParser, name: str) -> argparse.Action | None:
    return next((action for action in parser._actions if name in action.option_strings), None)


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


# ── what could be there ──────────────────────────────────────────────────────────────────────────────────────────────


def _options(parser: argparse.ArgumentParser) -> Iterator[Candidate]:
    for action in parser._actions:
        for name in action.option_strings:
            if name.startswith("--"):
                yield Candidate(name, action.help or "")


def _positional(place: _Place, word: str) -> Iterator[Candidate]:
    for action in place.parser._actions:
        if isinstance(action, argparse._SubParsersAction) and place.given == 0:
            for one in action._choices_actions:
                yield Candidate(str(one.dest), one.help or "")
    plain = [a for a in place.parser._actions if not a.option_strings and not isinstance(a, argparse._SubParsersAction)]
    if place.given < len(plain):
        yield from _values(place, plain[place.given], word)


def _values(place: _Place, action: argparse.Action, word: str) -> Iterator[Candidate]:
    command, dest = place.path[0] if place.path else "", action.dest
    if action.choices is not None:
        yield from (Candidate(str(choice)) for choice in action.choices)
    elif dest == "state":
        yield from map(Candidate, STATES)
    elif dest == "reason" and command not in {"approve", "deny"}:
        yield from map(Candidate, REASONS)
    elif dest == "app":
        yield from _apps()
    elif dest == "verdict":
        yield from map(Candidate, ("happened", "not_happened", "undo"))
    elif dest in {"queue", "queues"} or (command, dest) == ("queues", "name"):
        yield from _asked(place, "suggest_queues")
    elif (command, dest) == ("schedules", "name"):
        yield from _asked(place, "suggest_schedules")
    elif dest == "name" and command not in {"keys", "signal"}:
        yield from _asked(place, "suggest_handlers")
    elif command in _WAITS and dest == "id":
        yield from _ids(_asked(place, "suggest_waiting", reason=_WAITS[command]), word)
    elif dest in {"id", "parent"} or (command, dest) in {("submit", "after"), ("deliveries", "task")}:
        yield from _ids(_asked(place, "suggest_tasks"), word)


_WAITS = {"approve": "approval", "deny": "approval", "answer": "question", "resolve": "in_doubt"}


def _asked(place: _Place, statement: str, **values: str) -> list[Candidate]:
    from onward.cli.args.suggest import ask  # noqa: PLC0415 -- a database, and only where one is needed

    return [Candidate(value, about) for value, about in ask(place.db, statement, limit=MOST * 20, **values)]


def _ids(found: list[Candidate], word: str) -> Iterator[Candidate]:
    """Ids are typed by their first characters or by their last; a table shows the last eight."""
    shown = [one for task in found for one in (Candidate(task.value[-8:], task.about), task if word else None) if one]
    yield from [one for one in shown if one.value.startswith(word)][:MOST]


def _apps() -> Iterator[Candidate]:
    """Apps in the modules of this folder, without importing them."""
    for path in sorted(Path().glob("*.py"))[:MOST]:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        yield from (Candidate(f"{path.stem}:{name}") for name in _APP.findall(text))
