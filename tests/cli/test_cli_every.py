"""Every command has a test of its text and of its JSON. The table is complete, or a test over the parser names the missing
command."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.cli.args.parser import build
from onward.core.identity import Identity
from rig.commands import commands
from tests.cli.conftest import Run, Waiting
from tests.service.letters import bury

HERE = Path(__file__).parent


class Shop:
    """A database with a worker, for the rows of the table."""

    def __init__(self, onward: Run, db: str, waiting: Waiting) -> None:
        self.onward, self.db, self._waiting = onward, db, waiting
        self._made: list[str] = []

    def greeted(self) -> str:
        """A task that is completed."""
        output = self.onward("submit", "greet", '"you"', "--wait", "--json", "--db", self.db)
        return str(output.json["task_id"])

    def old(self) -> str:
        """A task that ended a while ago."""
        task_id = self.greeted()
        with closing(sqlite3.connect(self.db.removeprefix("sqlite:///"), timeout=60)) as connection, connection:
            connection.execute(
                "UPDATE onward_outcomes SET finished_at = finished_at - 100 WHERE task_id = ?", (task_id,)
            )
        return task_id

    def failed(self) -> str:
        return str(self.onward("submit", "fails", "--wait", "--json", "--db", self.db).json["task_id"])

    def waits(self, reason: str, *words: str) -> str:
        self._made.append(self._waiting(reason, *words))
        return self._made[-1]

    def newest(self, name: str, *words: str) -> str:
        output = self.onward("list", "--name", name, *words, "--limit", "1", "--json", "--db", self.db)
        return str(output.json["tasks"][0]["task_id"])

    def ask(self, kind: str, task_id: str) -> str:
        asks = self.onward(f"{kind}s", "--json", "--db", self.db).json[f"{kind}s"]
        return next(ask["id"] for ask in asks if ask["task_id"] == task_id)

    def key(self) -> str:
        return str(
            self.onward("keys", "create", "--name", "k", "--scope", "read", "--json", "--db", self.db).json["id"]
        )

    def session(self) -> str:
        """A session of a person who signed in."""

        async def begin() -> str:
            person = Identity("a-1", "ada@example.com", frozenset({"viewer"}), None)
            async with Onward(self.db) as app:
                return (await app.service.sessions.begin(person, idle_s=600, max_s=600)).session.id

        return asyncio.run(begin())

    def letter(self) -> str:
        """A dead letter."""

        async def make() -> str:
            async with Onward(self.db) as app:
                return (await bury(app, b"{}"))[0]

        return asyncio.run(make())

    def delivery(self) -> str:
        self.onward("submit", "greet", '"x"', "--wait", "--webhook", "https://example.com/hook", "--db", self.db)
        return str(self.onward("deliveries", "--json", "--db", self.db).json["deliveries"][0]["id"])

    def clear(self) -> None:
        for task_id in self._made:
            self.onward("cancel", task_id, "--db", self.db)


@pytest.fixture
def shop(onward: Run, crew: str, waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("ONWARD_WEBHOOK_SECRET", "whsec_" + "A" * 32)
    shop = Shop(onward, crew, waiting)
    yield shop
    shop.clear()
    onward("schedules", "unpause", "yearly", "--db", crew)  # other tests use the same worker


Words = Callable[[Shop], list[str]]
APP = "tests.cli.shop:app"


def janitor(shop: Shop, *words: str) -> str:
    """An agent that waits for an approval."""
    return shop.waits("approval", "janitor", '"/tmp/a"', *words)


def fork(shop: Shop) -> list[str]:
    return ["fork", shop.greeted(), "--input", '"me"', "--preview"]


EVERY: dict[str, tuple[Words, str, set[str]]] = {
    "submit": (lambda shop: ["submit", "greet", '"you"'], r"^[0-9a-z]{26}$", {"task_id", "state", "input", "usage"}),
    "list": (lambda shop: [shop.greeted(), "list", "--name", "greet"][1:], r"ID +STATE +TASK +QUEUE +AGE", {"tasks", "next"}),
    "show": (lambda shop: ["show", shop.greeted()], r"greet  completed · took", {"task_id", "journal", "waits_for"}),
    "state": (lambda shop: ["state", janitor(shop)], r"^Goal: /tmp/a$", {"goal", "plan", "known_facts"}),
    "patch": (
        lambda shop: ["patch", janitor(shop), '{"replace_plan": ["look"]}'],
        r"applies it at its next turn",
        {"goal", "plan"},
    ),
    "follow": (lambda shop: ["follow", shop.greeted()], r"✓  completed", {"seq", "kind", "key", "shift", "at", "data"}),
    "cancel": (lambda shop: ["cancel", shop.waits("signal", "listen")], r"\(listen\) is cancelled", {"task_id", "in_flight"}),
    "pause": (lambda shop: ["pause", shop.waits("signal", "listen")], r"is paused until: onward resume", {"task_id", "reason"}),
    "resume": (lambda shop: ["resume", shop.failed()], r"\(fails\) goes on", {"task_id", "state"}),
    "prioritize": (
        lambda shop: ["prioritize", shop.waits("signal", "listen"), "7"],
        r"has priority 7",
        {"task_id", "priority"},
    ),
    "prune": (lambda shop: ["prune", shop.old()], r"^\w{8} is deleted$", {"task_id", "pruned"}),
    "budget": (lambda shop: ["budget", janitor(shop, "--budget", '{"max_steps": 9}'), "--steps", "90"], r"(raised|so already)", {"task_id", "budget", "waiting"}),
    "artifacts": (lambda shop: ["artifacts", shop.greeted()], r"has no artifacts so far", {"task_id", "artifacts"}),
    "approvals": (lambda shop: [janitor(shop), "approvals"][1:], r"arguments +\{\"path\"", {"approvals"}),
    "approve": (
        lambda shop: ["approve", shop.ask("approval", shop.waits("approval", "ship", '"tea"'))],
        r"approved: Ship tea\?",
        {"id", "kind", "decision", "task_state"},
    ),
    "deny": (
        lambda shop: ["deny", shop.waits("approval", "ship", '"tea"'), "--reason", "no"],
        r"denied: Ship tea\?",
        {"id", "kind", "decision", "reason"},
    ),
    "questions": (lambda shop: [shop.waits("question", "choose"), "questions"][1:], r"Which region\?", {"questions"}),
    "answer": (
        lambda shop: ["answer", shop.waits("question", "choose"), "eu"],
        r"answered: Which region\?",
        {"id", "answer", "task_state"},
    ),
    "message": (lambda shop: ["message", janitor(shop), "hello"], r"the agent reads it before its next turn", {"task_id"}),
    "signal": (
        lambda shop: ["signal", shop.waits("signal", "listen"), "go"],
        r"sent: signal go",
        {"task_id", "signal", "value", "task_state"},
    ),
    "resolve": (
        lambda shop: ["resolve", shop.waits("in_doubt", "charge")],
        r"it is unknown whether this happened",
        {"task_id", "doubts", "verdicts"},
    ),
    "schedules": (lambda shop: ["schedules"], r"NAME +TASK +RHYTHM +LAST +NEXT", {"schedules"}),
    "schedules pause": (lambda shop: ["schedules", "pause", "yearly"], r"is paused", {"name", "paused"}),
    "schedules unpause": (lambda shop: ["schedules", "unpause", "yearly"], r"ticks next at", {"name", "paused"}),
    "schedules trigger": (lambda shop: ["schedules", "trigger", "yearly"], r"^[0-9a-z]{26}$", {"task_id"}),
    "handlers": (lambda shop: ["handlers"], r"greet +task +default +1", {"handlers"}),
    "usage": (lambda shop: ["usage", "--by", "model"], r"(CALLS|no model)", {"by", "rows"}),
    "deliveries": (lambda shop: [shop.delivery(), "deliveries"][1:], r"ID +TYPE +STATE +TRIES +TO", {"deliveries", "next"}),
    "deliveries redeliver": (
        lambda shop: ["deliveries", "redeliver", shop.delivery()],
        r"delivery \S+ is due; a worker",
        {"id", "state", "attempts"},
    ),
    "queues": (lambda shop: [shop.waits("signal", "listen"), "queues"][1:], r"QUEUE +STATE +WAITING +RUNNING", {"queues"}),
    "queues pause": (lambda shop: ["queues", "pause", "mail"], r"queue mail is paused until", {"name", "paused"}),
    "queues unpause": (lambda shop: ["queues", "unpause", "mail"], r"queue mail goes on", {"name", "paused"}),
    "queues drain": (
        lambda shop: ["queues", "drain", "mail", "--wait"],
        r"queue mail is paused, and none of its tasks runs any more",
        {"name", "paused", "running"},
    ),
    "workers": (lambda shop: ["workers"], r"ID +HOST, PID +RUNNING +RATE +LEASE", {"workers"}),
    "versions": (lambda shop: ["versions"], r"VERSION +STARTED +WORKERS +RUNNING", {"versions"}),
    "stats": (lambda shop: ["stats"], r"completed +\d", {"states", "reasons", "people", "workers", "rate"}),
    "top": (lambda shop: ["top", "--once"], r"^onward top .*\n1 worker · ", {"at", "database", "stats", "queues", "workers", "running", "people"}),
    "keys": (lambda shop: [shop.key(), "keys"][1:], r"ID +NAME +TENANT +SCOPES", {"keys"}),
    "keys list": (lambda shop: [shop.key(), "keys", "list"][1:], r"ID +NAME +TENANT +SCOPES", {"keys"}),
    "keys create": (
        lambda shop: ["keys", "create", "--name", "n", "--scope", "read"],
        r"^onward_|^\S{20,}$",
        {"id", "token", "scopes"},
    ),
    "keys revoke": (lambda shop: ["keys", "revoke", shop.key()], r"is revoked", {"id", "valid"}),
    "intakes": (lambda shop: [shop.letter(), "intakes"][1:], r"INTAKE +STATE +FROM +TO +RATE +LAG +DEAD", {"intakes"}),
    "dead": (lambda shop: [shop.letter(), "dead"][1:], r"ID +INTAKE +STATE +TRIES +BYTES +AGE +REASON", {"letters", "next"}),
    "dead list": (lambda shop: [shop.letter(), "dead", "list", "orders"][1:], r"orders +dead +1 +2 ", {"letters", "next"}),
    "dead show": (lambda shop: ["dead", "show", shop.letter()], r"header content-type +application/json", {"headers", "body", "left_out"}),
    "dead redrive": (lambda shop: ["dead", "redrive", shop.letter()], r"1 dead letter to be tried again", {"letters"}),
    "dead drop": (lambda shop: ["dead", "drop", shop.letter()], r"^deleted: 1 dead letter$", {"letters"}),
    "sessions": (lambda shop: [shop.session(), "sessions"][1:], r"ID +NAME +PERSON +TENANT +ROLES +USED +UNTIL", {"sessions"}),
    "sessions list": (lambda shop: [shop.session(), "sessions", "list"][1:], r"ada@example.com +a-1 +viewer", {"sessions"}),
    "sessions revoke": (
        lambda shop: ["sessions", "revoke", shop.session()],
        r"^1 session of ada@example.com ended; within two seconds",
        {"sessions"},
    ),
    "quotas": (lambda shop: ["quotas"], r"TENANT +QUOTA|no tenants", {"tenants"}),
    "quotas list": (lambda shop: ["quotas", "list"], r"TENANT +QUOTA|no tenants", {"tenants"}),
    "quotas set": (
        lambda shop: ["quotas", "set", "acme", "--streams", "5"],
        r"acme +streams +– +5 +its own",
        {"tenant", "quotas"},
    ),
    "quotas reset": (
        lambda shop: ["quotas", "reset", "acme"],
        r"acme +streams +– +100 +settings",
        {"tenant", "quotas"},
    ),
    "audit": (lambda shop: [shop.key(), "audit"][1:], r"NO +AT +WHO +DID +TO +MORE", {"entries"}),
    "audit verify": (lambda shop: ["audit", "verify"], r"entries are as they were written", {"sound", "entries", "head"}),
    "replay": (lambda shop: ["replay", shop.greeted(), APP], r"the code agrees with task", {"task_id", "agrees", "detail"}),
    "fork": (fork, r"would keep 1 record, and do again", {"forked", "from", "at", "keeps", "again"}),
    "migrate": (lambda shop: ["migrate"], r"was up to date already", {"database", "version", "migrated"}),
    "doctor": (lambda shop: ["doctor"], r"✓  tables +version", {"database", "fine", "checks"}),
    "completion": (lambda shop: ["completion", "bash"], r"complete -o default -F _onward onward", {"shell", "script"}),
}  # fmt: skip
"""The words of the command, a pattern for its text, and fields of its JSON."""

ELSEWHERE = {
    "demo": ("test_cli_demo.py", "test_"),
    "demo agent": ("test_cli_demo_agent.py", "test_"),
    "demo brokers": ("test_cli_demo_brokers.py", "test_"),
    "demo temporal": ("../engines/test_temporal_examples.py", "test_"),
    "serve": ("test_cli_serve.py", "test_without_an_app_it_serves_the_demo"),
    "dev": ("test_cli_processes.py", "test_dev"),
    "mcp": ("test_cli_serve.py", "test_mcp"),
    "worker": ("test_cli_worker.py", "test_"),
    "intake": ("../brokers/test_dead_letters.py", "test_an_intake_runs_as_a_process_of_its_own"),
    "check": ("test_cli_code.py", "test_"),
    "backup": ("test_cli_backup.py", "test_"),
    "restore": ("test_cli_backup.py", "test_"),
    "doubts": ("test_cli_backup.py", "test_"),
    "locks": ("test_cli_locks.py", "test_"),
    "locks list": ("test_cli_locks.py", "test_"),
    "locks release": ("test_cli_locks.py", "test_"),
    "schedules remove": ("test_cli_schedules.py", "test_"),
    "encryption": ("test_cli_encryption.py", "test_keys_rotation"),
    "encryption new-key": ("test_cli_encryption.py", "test_keys_rotation"),
    "encryption rotate": ("test_cli_encryption.py", "test_keys_rotation"),
    "encryption seal": ("test_cli_encryption.py", "test_sealing_of"),
    "encryption status": ("test_cli_encryption.py", "test_keys_rotation"),
    "erase": ("test_cli_encryption.py", "test_keys_rotation"),
    "doctor secrets": ("../secrecy/test_processes.py", "test_"),
}
"""Commands whose tests need more than a row, and the file that has them, for both text and JSON."""


def walked() -> set[str]:
    return {" ".join(path) for path, _, _ in commands(build())}


def test_no_command_is_without_a_test():
    named = EVERY.keys() | ELSEWHERE.keys()
    assert walked() - named == set(), "give it a row above, with its text and its JSON"
    assert named - walked() == set(), "there is no such command any more"
    assert not EVERY.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("command", ELSEWHERE)
def test_commands_marked_as_tested_elsewhere_are_tested(command: str):
    file, name = ELSEWHERE[command]
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert any(test.name.startswith(name) for test in tests)
    assert set(command.split()) <= texts, "its words stand in that file"
    assert "--json" in texts


@pytest.mark.parametrize("command", EVERY)
def test_text(command: str, shop: Shop):
    words, text, _ = EVERY[command]
    output = shop.onward(*words(shop), "--db", shop.db)
    assert output.status == 0, output.err
    assert re.search(text, output.out + output.err, re.MULTILINE), output.out + output.err
    assert "\x1b" not in output.out + output.err


@pytest.mark.parametrize("command", EVERY)
def test_json(command: str, shop: Shop):
    words, _, names = EVERY[command]
    output = shop.onward(*words(shop), "--json", "--db", shop.db)
    assert output.status == 0, output.err
    document: Any = output.lines[0] if command == "follow" else output.json
    assert names <= document.keys()
    assert output.out.isascii()
    assert output.err == "", "stderr is for people"
    assert json.dumps(document)
