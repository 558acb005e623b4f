"""Every command with --url gives the same JSON as with the database, through a real server. A command that cannot ask a server has a row
with its reason. A new command without a row fails a test."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from onward import Onward
from onward.cli.args.parser import build
from onward.cli.main import main
from onward.core.lock import LockRequest
from rig.commands import commands
from rig.processes import Child
from tests.cli.conftest import ROOT, Output, Run, process, waiting_at
from tests.cli.terminal import terminal
from tests.cli.test_cli_every import EVERY, Shop, walked

ENV = {"ONWARD_WEBHOOK_SECRET": "whsec_" + "A" * 32}
START_S = 60.0
"""Seconds in which a server has to start, on a slow machine too."""


class Served(NamedTuple):
    """A server with a worker: its address, its database, and a key with all scopes."""

    url: str
    db: str
    key: str


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    db = f"sqlite:///{tmp_path_factory.mktemp('served') / 'onward.db'}"
    made = process("keys", "create", "--name", "root", "--scope", "read,submit,decide,admin", "--json", "--db", db)
    words = ("serve", "tests.cli.shop:app", "--port", "0", "--json", "--db", db)
    with Child.module("onward", *words, cwd=ROOT, env=ENV) as child:
        ready = json.loads(child.wait_for('"ready"', timeout=START_S))
        yield Served(str(ready["message"]).split()[0], db, made.json["token"])


@pytest.fixture
def shop(onward: Run, served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    for name, value in {**ENV, "ONWARD_KEY": served.key}.items():
        monkeypatch.setenv(name, value)
    shop = Shop(onward, served.db, waiting_at(onward, served.db))
    yield shop
    shop.clear()


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────

Words = Callable[[Shop], list[str]]


def with_lock(shop: Shop, *words: str) -> list[str]:
    """A command about a lock that two programs want."""

    async def take() -> None:
        async with Onward(shop.db) as app:
            for owner in ("first", "second"):
                await app.store.locks.take(LockRequest("", "deploy:web", owner, "host:web", ttl_s=600.0))

    asyncio.run(take())
    return list(words)


def with_schedule(shop: Shop) -> list[str]:
    async def make() -> None:
        async with Onward(shop.db) as app:

            @app.task
            async def spare(ctx: Any) -> None:
                pass

            app.schedule("spare", spare, cron="0 0 1 1 *")
            async with app.worker(slots=1):
                pass

    asyncio.run(make())
    return ["schedules", "remove", "spare"]


MORE: dict[str, Words] = {
    "locks": lambda shop: with_lock(shop, "locks"),
    "locks list": lambda shop: with_lock(shop, "locks", "list"),
    "locks release": lambda shop: with_lock(shop, "locks", "release", "deploy:web", "--reason", "it hangs"),
    "schedules remove": with_schedule,
    "encryption": lambda shop: ["encryption"],
    "encryption status": lambda shop: ["encryption", "status"],
    "submit --wait": lambda shop: ["submit", "greet", '"you"', "--wait", "--label", "a=b", "--priority", "3"],
    "submit --follow": lambda shop: ["submit", "greet", '"you"', "--follow"],
    "submit --anyway": lambda shop: ["submit", "unheard-of", "--anyway", "--queue", "q", "--delay", "1h", "--deadline", "2h"],
    "submit --budget": lambda shop: ["submit", "greet", '"x"', "--budget", '{"max_steps": 3, "max_wall_time": "2m"}'],
    "submit --key": lambda shop: ["submit", "greet", '"x"', "--key", 'a "quoted" kéy'],
    "submit --wait, failed": lambda shop: ["submit", "fails", "--wait"],
    "submit --wait, for a person": lambda shop: ["submit", "ship", '"tea"', "--wait"],
    "list, filtered": lambda shop: [shop.greeted(), "list", "--state", "completed", "--name", "greet", "--since", "1h", "--limit", "2"][1:],
    "list, waiting": lambda shop: [shop.waits("signal", "listen"), "list", "--state", "waiting"][1:],
    "list --text": lambda shop: ["list", "--text", "hel", "--label", "a=b"],
    "show, waiting": lambda shop: ["show", shop.waits("approval", "janitor", '"/tmp/a"')],
    "show, by the end of its id": lambda shop: ["show", shop.greeted()[-10:]],
    "show --record": lambda shop: ["show", shop.greeted(), "--record", "1"],
    "show --turns": lambda shop: ["show", shop.waits("approval", "janitor", '"/tmp/a"'), "--turns"],
    "show --turn": lambda shop: ["show", shop.waits("approval", "janitor", '"/tmp/a"'), "--turn", "1"],
    "approvals ID": lambda shop: ["approvals", shop.ask("approval", shop.waits("approval", "ship", '"tea"'))],
    "resolve, with a verdict": lambda shop: ["resolve", shop.waits("in_doubt", "charge"), "happened", "--result", "7"],
    "fork, its places": lambda shop: ["fork", shop.greeted()],
    "fork --input": lambda shop: ["fork", shop.greeted(), "--input", '"me"', "--yes"],
    "handlers NAME": lambda shop: ["handlers", "greet"],
    "budget, shown": lambda shop: ["budget", shop.waits("approval", "janitor", '"/tmp/a"', "--budget", '{"max_steps": 9}')],
    "pause --all": lambda shop: [shop.waits("signal", "listen"), "pause", "--all", "--name", "listen", "--reason", "signal", "--yes"][1:],
    "cancel --all, unconfirmed": lambda shop: [shop.waits("signal", "listen"), "cancel", "--all", "--name", "listen"][1:],
    "follow, failed": lambda shop: ["follow", shop.failed()],
    "audit verify --head": lambda shop: ["audit", "verify", "--head", "1:" + "0" * 64],
    "keys create, of a tenant": lambda shop: ["keys", "create", "--name", "n", "--scope", "read", "--tenant", "acme", "--expires", "1d"],
    "no such task": lambda shop: ["show", "0" * 26],
    "no such handler": lambda shop: ["submit", "greeet", "1"],
    "no such end of an id": lambda shop: ["cancel", "zzzzzz"],
    "an ambiguous id": lambda shop: [shop.greeted(), shop.greeted(), "show", "0"][2:],
    "no such schedule": lambda shop: ["schedules", "pause", "monthly"],
    "no such schedule, named as a folder": lambda shop: ["schedules", "pause", ".."],
    "a signal named as a folder": lambda shop: ["signal", shop.waits("signal", "listen"), "..", "1"],
    "a queue named as a folder": lambda shop: [shop.onward("queues", "unpause", "..", "--db", shop.db).out, "queues", "pause", "."][1:],
    "no such record": lambda shop: ["show", shop.greeted(), "--record", "99999999999999999999999"],
    "a deadline that is too far": lambda shop: ["submit", "greet", '"x"', "--deadline", "99999999999d"],
    "no such approval": lambda shop: ["approve", f"{shop.greeted()}.1"],
    "decided already": lambda shop: ["approve", decided(shop)],
    "a patch that is none": lambda shop: ["patch", shop.waits("approval", "janitor", '"/tmp/a"'), '{"colour": 1}'],
    "a limit that is too high": lambda shop: ["list", "--limit", "100000"],
    "a key that was used otherwise": lambda shop: [shop.onward("submit", "greet", '"y"', "--key", "used", "--db", shop.db).out, "submit", "greet", '"z"', "--key", "used"][1:],
    "doubts": lambda shop: [shop.waits("in_doubt", "charge"), "doubts", "--limit", "5"][1:],
    "no state": lambda shop: ["state", shop.greeted()],
}  # fmt: skip
"""Commands that have no row in `EVERY`, other options, and errors."""

TABLE: dict[str, Words] = {command: words for command, (words, _, _) in EVERY.items()} | MORE


def decided(shop: Shop) -> str:
    ask = shop.ask("approval", shop.waits("approval", "ship", '"tea"'))
    shop.onward("approve", ask, "--db", shop.db)
    return ask


CHANGES = {
    "cancel", "pause", "resume", "prioritize", "prune", "approve", "deny", "answer", "signal", "deliveries redeliver", "keys revoke",
    "dead redrive", "dead drop", "sessions revoke", "patch", "budget", "message", "locks release", "schedules remove", "submit",
    "submit --wait", "submit --follow", "submit --anyway", "submit --budget", "resolve, with a verdict", "fork --input", "pause --all",
    "keys create", "keys create, of a tenant", "schedules trigger", "submit --wait, failed", "submit --wait, for a person",
}  # fmt: skip
"""Commands that change something: each of the two runs gets its own task, key … to change."""

LOCAL = {
    "demo": "workers on this machine",
    "demo agent": "workers on this machine",
    "demo brokers": "workers on this machine",
    "demo temporal": "workers on this machine",
    "serve": "it is the server itself",
    "dev": "runs your code here",
    "mcp": "the server itself speaks MCP",
    "worker": "runs your code here",
    "intake": "runs your code here",
    "check": "runs your code",
    "replay": "runs your code",
    "migrate": "only an owner of the tables",
    "doctor secrets": "stay on this machine",
    "encryption rotate": "needs the master keys",
    "encryption seal": "needs the master keys",
    "erase": "lost for good",
    "backup": "a folder of this machine",
    "restore": "replaces the database",
}
"""Commands that refuse --url, and words of the reason."""

NEITHER = {"completion", "encryption new-key"}
"""Commands that ask neither a database nor a server."""

DIFFERS = {
    "top": {"database"},  # the address of the server: its database is for admins alone (`onward doctor`)
    "keys create": {"owner"},  # a key that is made over HTTP acts for the key that made it
    "keys create, of a tenant": {"owner"},
    "handlers": {"here"},  # whether the process that answers has the handler: the server does, this process does not
    "handlers NAME": {"here"},
    "a limit that is too high": {
        "code",
        "message",
    },  # the server checks the form of a request before it asks the service
}
"""Fields that differ by their nature, and why."""

_GOES_ON = {"state", "reason", "result", "finished_at", "worker", "task_state"}
_IS_SENT = {"state", "attempts", "said", "due_at", "done_at", "sending"}
MOVES = {
    "deliveries": _IS_SENT,
    "deliveries redeliver": _IS_SENT,
    **dict.fromkeys(
        (
            "answer", "approve", "deny", "signal", "a signal named as a folder", "submit", "submit --budget", "submit --key", "schedules trigger", "fork --input", "resume",
            "resolve, with a verdict",
        ),
        _GOES_ON,
    ),
}  # fmt: skip
"""Fields that the worker, or the sender of webhooks, changes while the command runs."""


def test_every_command_has_a_row() -> None:
    named = TABLE.keys() | LOCAL.keys() | NEITHER
    assert walked() - named == set(), "give it a row: it works with --url, or it refuses with a reason"
    assert not set(LOCAL) & (TABLE.keys() - {"replay", "migrate", "backup", "restore"})
    refusing = {" ".join(path) for path, parser, _ in commands(build()) if parser.get_default("local")}
    assert refusing == set(LOCAL)
    assert CHANGES | DIFFERS.keys() | MOVES.keys() <= TABLE.keys()


ROWS = [
    pytest.param(command, marks=[pytest.mark.slow] if command in MORE.keys() - walked() else [])
    for command in sorted(TABLE.keys() - LOCAL.keys() - NEITHER)
]


@pytest.mark.parametrize("command", ROWS)
def test_the_json_is_the_same(command: str, shop: Shop, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.cli.commands.submit.WORKER_START_S", 0.1)
    words = TABLE[command](shop)
    here = shop.onward(*words, "--json", "--db", served.db)
    again = TABLE[command](shop) if command in CHANGES else words
    there = shop.onward(*again, "--json", "--url", served.url)
    assert there.status == here.status, there.err + there.out
    differs = DIFFERS.get(command, set()) | MOVES.get(command, set())
    assert plain(there, differs) == plain(here, differs)
    assert "Traceback" not in there.err
    assert bool(there.err) == bool(here.err)


_ID = re.compile(r"\b[0-9a-z]{26}\b")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)?")
_NUMBER = re.compile(r"\d[\d.,]*")
_VOLATILE = frozenset(
    {
        "id",
        "subscription",
        "hash",
        "digest",
        "token",
        "last_used_at",
        "lease_s",
        "rate",
        "oldest_s",
        "pid",
        "running",
        "spent",
        "took_s",
        "behind",
    }
)
"""Fields that differ from one task to the next, or from one moment to the next."""


def plain(output: Output, differs: set[str]) -> list[str]:
    """The JSON of a command without ids, times, and the fields that move, in lines."""
    text = output.out
    for task_id in _ID.findall(output.out):  # whole, and as tables and commands shorten it
        text = text.replace(task_id, "ID").replace(task_id[-8:], "ID")
    try:
        documents = [json.loads(text)]
    except ValueError:
        documents = [json.loads(line) for line in text.splitlines()]
    return json.dumps([_plain(document, differs) for document in documents], indent=1).splitlines()


def _plain(value: Any, differs: set[str]) -> Any:
    if isinstance(value, dict):
        return {name: _field(name, item, differs) for name, item in value.items() if name not in differs}
    if isinstance(value, list):
        return [_plain(item, differs) for item in value]
    return _TIME.sub("TIME", value) if isinstance(value, str) else value


def _field(name: str, value: Any, differs: set[str]) -> Any:
    if name in _VOLATILE and not isinstance(value, list | dict):
        return "…"
    if name == "detail" and isinstance(value, str):  # of a check of the doctor
        return re.sub(
            "behind|ahead of", "beside", _NUMBER.sub("N", value)
        )  # on which side the clock is, by a millisecond
    return _plain(value, differs)


def test_a_difference_is_found() -> None:
    one, other = (
        {"task_id": "0" * 26, "state": state, "at": "2026-11-18T10:00:00Z"} for state in ("failed", "completed")
    )
    same = {**one, "task_id": "1" * 26, "at": "2026-11-18T11:00:00Z"}
    first, again, second = (Output(0, json.dumps(document), "") for document in (one, same, other))
    assert plain(first, set()) == plain(again, set())
    assert plain(first, set()) != plain(second, set())
    assert plain(first, {"state"}) == plain(second, {"state"})


# ── commands and options that refuse ─────────────────────────────────────────────────────────────────────────────────

ARGUMENTS = {
    "worker": ["a:b"],
    "dev": ["a:b"],
    "intake": ["a:b"],
    "check": ["a:b"],
    "replay": ["7k2m", "a:b"],
    "doctor secrets": ["a:b"],
    "erase": ["--tenant", "acme"],
    "backup": ["folder"],
    "restore": ["folder"],
}


@pytest.mark.parametrize("command", LOCAL)
def test_a_command_that_needs_the_database_says_why(command: str, onward: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*command.split(), *ARGUMENTS.get(command, [])]
    refused = onward(*words, "--url", "https://onward.example.com")
    assert (refused.status, LOCAL[command] in refused.sentence) == (2, True), refused.sentence
    assert f"`onward {command}` cannot ask a server" in refused.sentence
    assert "--db" in refused.sentence
    monkeypatch.setenv("ONWARD_URL", "https://onward.example.com")
    assert onward(*words).sentence == refused.sentence


def test_options_that_need_the_database_say_why(onward: Run, shop: Shop, served: Served) -> None:
    deep = onward("doctor", "--deep", "--url", served.url)
    assert (deep.status, "--deep cannot ask a server" in deep.sentence) == (2, True)
    owner = onward("keys", "create", "--name", "n", "--scope", "read", "--owner", "person:a", "--url", served.url)
    assert (owner.status, "acts for the key that made it" in owner.sentence) == (2, True)
    app = onward("submit", "greet", "1", "--app", "tests.cli.shop:app", "--url", served.url)
    assert (app.status, "--app does not go with a server" in app.sentence) == (2, True)
    both = onward("list", "--db", served.db, "--url", served.url)
    assert (both.status, "leave one of them out" in both.sentence) == (2, True)


@pytest.mark.parametrize("command", sorted(NEITHER))
def test_commands_that_ask_neither(command: str, onward: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_URL", "http://127.0.0.1:9")
    word = {"completion": "bash"}.get(command, "k1")
    assert onward(*command.split(), word).status == 0


# ── which server, and which key ──────────────────────────────────────────────────────────────────────────────────────


def test_the_address_and_the_key_come_from_the_environment_or_from_options(
    onward: Run, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text(f"{served.key}\n", encoding="utf-8")
    monkeypatch.delenv("ONWARD_KEY", raising=False)
    assert onward("stats", "--url", served.url, "--key-file", str(file), "--json").status == 0
    assert onward("--url", served.url, "--key-file", str(file), "stats").status == 0, "before the command, too"
    monkeypatch.setenv("ONWARD_URL", served.url)
    monkeypatch.setenv("ONWARD_KEY", served.key)
    monkeypatch.setenv("ONWARD_DB", "sqlite:////nowhere/at/all.db")
    assert onward("stats").status == 0, "a server comes before a database, where both are in the environment"
    fresh = f"sqlite:///{tmp_path / 'fresh.db'}"
    assert onward("list", "--db", fresh, "--json").json["tasks"] == [], "--db comes before ONWARD_URL"
    missing = onward("stats", "--key-file", str(tmp_path / "none"))
    assert (missing.status, "cannot be read (No such file" in missing.sentence) == (2, True)
    file.write_text("\n", encoding="utf-8")
    assert "is empty" in onward("stats", "--key-file", str(file)).sentence


def test_errors_say_what_to_do(onward: Run, served: Served, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONWARD_KEY")
    none = onward("list", "--url", served.url, "--json")
    assert (none.status, none.json["error"]["code"]) == (2, "unauthorized")
    assert f"{served.url} needs a key in ONWARD_KEY, or in a file with --key-file" in none.sentence
    monkeypatch.setenv("ONWARD_KEY", "onw_" + "a" * 40)
    wrong = onward("list", "--url", served.url)
    assert (wrong.status, "unknown, revoked or expired; give another one in ONWARD_KEY" in wrong.sentence) == (2, True)
    monkeypatch.setenv("ONWARD_KEY", "schlüssel")
    assert "use it as `onward keys create` printed it" in onward("list", "--url", served.url).sentence
    made = onward("keys", "create", "--name", "looker", "--scope", "read", "--json", "--db", served.db)
    monkeypatch.setenv("ONWARD_KEY", made.json["token"])
    lacks = onward("submit", "greet", '"x"', "--url", served.url, "--json")
    assert (lacks.status, lacks.json["error"]["code"]) == (2, "forbidden")
    assert "the key 'looker' lacks the scope 'submit'" in lacks.sentence
    made = onward("keys", "create", "--name", "sender", "--scope", "read,submit", "--json", "--db", served.db)
    monkeypatch.setenv("ONWARD_KEY", made.json["token"])
    assert "lacks the scope 'admin'" in onward("submit", "unheard-of", "--anyway", "--url", served.url).sentence
    scopes = ("--scope", "read,submit,admin", "--tenant", "acme")
    made = onward("keys", "create", "--name", "tenant", *scopes, "--json", "--db", served.db)
    monkeypatch.setenv("ONWARD_KEY", made.json["token"])
    fills = onward("submit", "unheard-of", "--anyway", "--url", served.url, "--json")
    assert (fills.status, fills.json["error"]["code"]) == (2, "not_for_tenants")
    assert "begins with http:// or https://" in onward("list", "--url", "onward.example.com").sentence


def test_a_server_that_cannot_be_reached(onward: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.cli.backend.remote.PATIENCE_S", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: the connection is refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        gone = onward("list", "--url", url, "--json")
    assert (gone.status, gone.json["error"]["code"]) == (6, "unreachable")
    assert f"{url} was asked" in gone.sentence
    assert "check the address, and whether the server runs" in gone.sentence


def test_an_address_that_cannot_be_asked_and_one_with_a_password(onward: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.cli.backend.remote.PATIENCE_S", 0.2)
    for wrong in (
        "http://",
        "http://[::1",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:x",
        "http://127.0.0.1?x=1",
        "https://a@:80#b",
    ):
        refused = onward("list", "--url", wrong)
        assert (refused.status, "is not the address of a server" in refused.sentence) == (2, True), refused.sentence
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = onward("list", "--url", f"http://ada:hunter2@127.0.0.1:{taken.getsockname()[1]}", "--json")
    assert (gone.status, gone.json["error"]["code"]) == (6, "unreachable")
    assert "hunter2" not in gone.out + gone.err


class Stranger(http.server.BaseHTTPRequestHandler):
    """A server of another version, or of another kind."""

    answers: ClassVar[dict[str, tuple[int, str, str]]] = {}

    def do_GET(self) -> None:
        status, media, body = self.answers.get(self.path.partition("?")[0], (404, "text/html", "<h1>Not Found</h1>"))
        self.send_response(status)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_POST = do_GET  # noqa: N815

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_server_of_another_version_and_a_server_of_another_kind(
    onward: Run, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    media = "application/json"
    problem = json.dumps({"code": "no_such_path", "detail": "there is no path", "status": 404})
    older = {
        "/api/whoami": (200, media, '{"version": "0.0.1"}'),
        "/api/encryption": (404, "application/problem+json", problem),
        "/api/stats": (200, media, '{"states": {}}'),
        "/api/queues": (200, "text/html", "<h1>welcome</h1>"),
    }
    monkeypatch.setattr(Stranger, "answers", older)
    for command in ("encryption", "stats"):
        other = onward(command, "--url", stranger, "--json")
        assert (other.status, other.json["error"]["code"]) == (2, "other_version")
        assert f"the server at {stranger} is Onward 0.0.1" in other.sentence
        assert "update the older of the two" in other.sentence
    web = onward("queues", "--url", stranger)
    assert (web.status, "is not one of an Onward server; check the address" in web.sentence) == (2, True)
    proxy = onward("workers", "--url", stranger)
    assert (proxy.status, "the answer was 404, not one of Onward's" in proxy.sentence) == (4, True)


def test_the_server_checks_an_input(shop: Shop, served: Served) -> None:
    """The database does so only with --app: the command line has not the code."""
    wrong = shop.onward("submit", "greet", "7", "--url", served.url)
    assert (wrong.status, "Input should be a valid string" in wrong.sentence) == (2, True)


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_follow_shows_records_while_they_are_written(shop: Shop, served: Served) -> None:
    """The command follows a task that goes on only after its first records were shown."""
    task_id = shop.waits("signal", "listen")
    words = ("follow", task_id, "--json", "--url", served.url)
    with Child.module("onward", *words, cwd=ROOT, env={"ONWARD_KEY": served.key}) as child:
        child.wait_for('task.submitted"', timeout=START_S)
        assert shop.onward("signal", task_id, "go", '"now"', "--url", served.url).status == 0
        last = json.loads(child.wait_for('"state": "completed"', timeout=START_S))
        assert (last["state"], last["result"]) == ("completed", "now")


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--wait", "--follow"])
def test_a_command_that_waits_for_a_task_goes_on_when_the_server_was_restarted(
    option: str, onward: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restart takes longer than another command would try."""
    monkeypatch.setattr("onward.cli.backend.remote.PATIENCE_S", 0.1)
    monkeypatch.setattr("onward.cli.commands.follow.NOTICE_S", 0.1)
    db = f"sqlite:///{tmp_path / 'onward.db'}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = ("serve", "tests.cli.shop:app", "--port", str(port), "--json", "--db", db)
    url = f"http://127.0.0.1:{port}"
    statuses: list[int] = []
    with Child.module("onward", *serve, cwd=ROOT) as server:
        server.wait_for('"ready"', timeout=START_S)
        words = ("submit", "listen", option, "--json", "--url", url)
        waits = threading.Thread(target=lambda: statuses.append(main(words)))
        waits.start()
        task_id = waiting_task(onward, db)
        server.kill9()
    assert waits.is_alive()
    with Child.module("onward", *serve, cwd=ROOT) as server:
        server.wait_for('"ready"', timeout=START_S)
        assert onward("signal", task_id, "go", '"now"', "--db", db).status == 0
        waits.join(START_S)
    assert statuses == [0]


def waiting_task(onward: Run, db: str) -> str:
    """The id of the only task, once it waits for its signal."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with contextlib.suppress(ValueError):
            (task,) = onward("list", "--state", "waiting", "--json", "--db", db).json["tasks"]
            return str(task["task_id"])
        time.sleep(0.05)
    raise AssertionError("the task does not wait")


def test_the_live_tree_and_the_text(shop: Shop, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = shop.onward("show", shop.greeted(), "--url", served.url)
    assert "greet  completed" in shown.out
    assert "ID" in shop.onward("list", "--url", served.url).out
    assert served.url in shop.onward("top", "--once", "--url", served.url).out
    assert "hello you" in shop.onward("submit", "greet", '"you"', "--wait", "--url", served.url).out
    words = ("submit", "household", '"greet"', "--follow", "--url", served.url)
    with terminal(*words, ONWARD_KEY=served.key) as live:
        assert "household" in live.read("hello")
