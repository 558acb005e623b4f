"""The rules of the house that a machine can hold, so that nobody has to remember them."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onward
from onward.config import Settings, variable

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "onward"
MODULES = sorted(SOURCE.rglob("*.py"))
STATEMENTS = SOURCE / "store" / "statements"

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


# ── public names ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _public() -> Iterator[tuple[str, Any]]:
    for name in onward.__all__:
        found = getattr(onward, name)
        yield name, found
        if inspect.isclass(found):
            for inner, member in vars(found).items():
                if not inner.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    yield f"{name}.{inner}", member


def test_public_names_have_docstrings() -> None:
    assert [name for name, found in _public() if not isinstance(found, str) and not inspect.getdoc(found)] == []


def test_there_is_about_a_dozen_public_names_and_each_is_there() -> None:
    assert len(onward.__all__) <= 20
    assert onward.__all__ == sorted(onward.__all__)
    assert {name for name in onward.__all__ if not hasattr(onward, name)} == set()
    assert set(onward.__all__) <= set(dir(onward))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = onward.nothing


def test_every_verb_of_the_port_says_what_it_promises() -> None:
    from onward.store.port.core import Store

    verbs = {name: verb for name, verb in vars(Store).items() if inspect.isfunction(verb) and not name.startswith("_")}
    assert [name for name, verb in verbs.items() if not inspect.getdoc(verb)] == []
    assert len(verbs) <= 50, "a port that everybody can keep in mind"


def test_every_error_says_what_it_means() -> None:
    from onward import errors

    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == "onward.errors"]
    assert [kind.__name__ for kind in kinds if not kind.__doc__] == []
    tree = errors.__doc__ or ""
    assert [kind.__name__ for kind in kinds if kind.__name__ not in tree] == [], "draw the exception tree"


@each_module
def test_every_module_begins_by_saying_what_lives_there(path: Path) -> None:
    assert ast.get_docstring(ast.parse(read(path))), "open a file by teaching it"


@each_module
def test_classes_and_public_functions_have_docstrings(path: Path) -> None:
    if "cli" in path.parts:
        return
    bare = [
        node.name
        for node in ast.parse(read(path)).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
        and [ast.unparse(one) for one in node.decorator_list] != ["overload"]
    ]
    assert bare == []


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_setting_is_explained_with_its_variable_and_its_default() -> None:
    rows = [line for line in read(ROOT / "docs" / "settings.md").splitlines() if line.startswith("| `")]
    told = {cells[0]: cells for cells in ([cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows)}
    assert set(told) == {field.name for field in dataclasses.fields(Settings)}
    for field in dataclasses.fields(Settings):
        name, environment, default, text = told[field.name]
        assert environment == variable(name)
        assert default == (f"{field.default:g}" if isinstance(field.default, float) else str(field.default))
        assert len(text) > 20


# ── SQL ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sections() -> Iterator[tuple[str, str, str]]:
    for path in sorted(STATEMENTS.glob("*.sql")):
        for name, body in re.findall(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", read(path), re.MULTILINE | re.DOTALL):
            yield path.stem, name, body


SECTIONS = list(_sections())


@pytest.mark.parametrize(("file", "name", "body"), SECTIONS, ids=[f"{file}-{name}" for file, name, _ in SECTIONS])
def test_every_statement_has_a_sentence_and_a_caller(file: str, name: str, body: str) -> None:
    assert re.match(r"-- [A-Z].{8,}", body), "say what it is for, in a sentence"
    callers = [path for path in MODULES if re.search(rf"[\"']{name}[\"']", read(path))]
    inside = [other for _, other, text in SECTIONS if f"{{{name}}}" in text]
    assert callers or inside, "nobody uses it"
    if file != "common" and not inside:
        assert any(path.parent.name == file for path in callers)


def test_what_differs_is_said_and_what_does_not_is_common() -> None:
    own = {file: {name for f, name, _ in SECTIONS if f == file} for file in ("common", "postgres", "sqlite")}
    assert own["common"] & (own["postgres"] | own["sqlite"]) == set(), "a statement has one home"
    bodies = {(file, name): re.sub(r"--.*|\s+", " ", body).split() for file, name, body in SECTIONS}
    twins = [name for name in own["postgres"] & own["sqlite"] if bodies["postgres", name] == bodies["sqlite", name]]
    assert twins == [], "what reads the same on both belongs into common.sql"


def test_migrations_are_numbered_without_a_gap_and_alike_on_both_databases() -> None:
    from onward.store import migrate

    names = {dialect: [m.name for m in migrate.load(dialect)] for dialect in ("postgres", "sqlite")}
    assert names["postgres"] == names["sqlite"]
    assert [int(name[:4]) for name in names["sqlite"]] == list(range(1, len(names["sqlite"]) + 1))


# ── seams ────────────────────────────────────────────────────────────────────────────────────────────────────────────

SPAWNERS = {
    "testing.py": 1,  # what drain runs beside itself
    "engine/background.py": 1,  # spawn(), the seam itself
    "engine/worker/lease.py": 1,  # the heartbeat of an inline store
    "engine/shift/timeout.py": 2,  # work within a time, and its alarm
    "engine/shift/branches.py": 1,  # lines of one handler, which ends them with itself
    "engine/shift/transaction.py": 1,  # the transaction around a block
    "store/sqlite/transaction.py": 1,  # the writer's side of one
    "engine/shift/waits.py": 1,  # the alarm of a wait in memory
    "store/postgres/listener.py": 1,  # one task with the life of its connection
    "server/live/feed.py": 2,  # the one reader, and its ear for the end of the server
    "server/live/websocket.py": 2,  # both directions of a talk, which end together
    "server/http/routes/tasks.py": 3,  # an answer that is held back, and its ears for the end of the client and of the server
    "server/live/sse.py": 2,  # an answer, and its ear for the end of the client
    "store/postgres/nudges.py": 1,  # nudges on their way out
    "store/postgres/migrate.py": 1,  # the look at an index that is being built
    "store/sqlite/nudges.py": 1,
}


@each_module
def test_background_tasks_come_from_the_seams(path: Path) -> None:
    """`spawn` keeps a task alive until it is done and lets the simulator have it; a bare create_task does neither."""
    where = str(path.relative_to(SOURCE))
    if where.startswith("cli/"):
        return
    found = [
        node
        for node in ast.walk(ast.parse(read(path)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"create_task", "ensure_future", "TaskGroup"}
    ]
    assert len(found) == SPAWNERS.get(where, 0), "give it to spawn, or say here why not"


TIME = re.compile(
    r"\btime\.(time|monotonic|sleep|perf_counter|time_ns)\(|datetime\.now\(|datetime\.utcnow\(|asyncio\.sleep\((?!0\))"
)
TAKERS = {
    "core/clock.py",  # the seam itself
    "store/sqlite/lane.py",  # the nap of a busy handler, inside SQLite
    "store/sqlite/file.py",  # patience with a file that is being made
    "store/postgres/listener.py",  # pauses between two tries to connect
    "store/postgres/migrate.py",  # pauses between two tries to get a lock
    "engine/worker/lease.py",
    "agent/http_limits.py",  # the pause between two tries to go on with a stream
    "testing.py",  # a step that really takes time is really waited for
}


@each_module
def test_time_is_given_never_taken(path: Path) -> None:
    where = str(path.relative_to(SOURCE))
    if where.startswith(("cli/", "demo")) or where in TAKERS:
        return
    code = "\n".join(line.split("#")[0] for line in read(path).splitlines())
    assert TIME.findall(code) == []


@each_module
def test_modules_are_short(path: Path) -> None:
    assert len(read(path).splitlines()) <= 700, "a smell: does one module do the work of two?"


@each_module
def test_no_print_outside_the_command_line(path: Path) -> None:
    calls = [
        n for n in ast.walk(ast.parse(read(path))) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "print"
    ]
    assert not calls or "cli" in path.parts


# ── imports ──────────────────────────────────────────────────────────────────────────────────────────────────────────

HEAVY = ("pydantic", "asyncpg", "cronsim", "zoneinfo", "rich", "psycopg", "sqlalchemy", "uvloop", "obstore", "httpx2")


@pytest.mark.parametrize(
    "what", ["import onward", "import onward; onward.Onward", "import onward; onward.Onward('sqlite://:memory:')"]
)
def test_import_onward_imports_nothing_heavy(what: str) -> None:
    check = f"import sys; {what}; print(*sorted({{m.partition('.')[0] for m in sys.modules}} & set({HEAVY!r})))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []


def test_every_module_can_be_imported_alone() -> None:
    for module in pkgutil.walk_packages(onward.__path__, "onward."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_the_version_is_said_once() -> None:
    from onward.app.application import VERSION

    assert f'version = "{VERSION}"' in read(ROOT / "pyproject.toml")
    assert onward.__version__ == VERSION
