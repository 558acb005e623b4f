"""The rules of this project that no linter knows. `make lint` runs it: each rule once over all files.

A complaint has the form `path:line: what is wrong and what to do`. Exit status 1 when there is one.
"""

from __future__ import annotations

import ast
import graphlib
import re
import sys
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "onward"
STATEMENTS = SOURCE / "store" / "statements"

MAX_MODULE_LINES = 620
LISTS = frozenset({"errors.py"})
"""Modules that only list small classes, and may be as long as the list is."""

SPAWNERS = {
    "testing.py": 1,  # the worker that `drain` runs beside itself
    "engine/background.py": 1,  # spawn(), the seam itself
    "engine/worker/lease.py": 1,  # the heartbeat of an inline store
    "engine/shift/timeout.py": 2,  # work within a time, and its alarm
    "coordinate/leases.py": 1,  # the renewal of a lease, which ends with its block
    "engines/temporal/workflow.py": 1,  # inside of a workflow, whose loop is Temporal's
    "engine/shift/branches.py": 1,  # branches of one handler, which ends them with itself
    "engine/shift/transaction.py": 1,  # the transaction around a block
    "store/sqlite/transaction.py": 1,  # the writer's side of one
    "engine/shift/waits.py": 1,  # the alarm of a wait in memory
    "store/postgres/session.py": 1,  # the attempt of a connection, which ends before its caller
    "store/postgres/listener.py": 1,  # one task with the life of its connection
    "server/live/feed.py": 2,  # the one reader, and its ear for the end of the server
    "server/live/websocket.py": 2,  # both directions of a talk, which end together
    "server/http/routes/tasks.py": 3,  # a response that is held back, and its ears for the end of the client and of the server
    "server/live/sse.py": 2,  # a response, and its ear for the end of the client
    "store/postgres/nudges.py": 1,  # nudges on their way out
    "store/postgres/migrate.py": 1,  # the look at an index that is being built
    "store/sqlite/nudges.py": 1,
    "service/waiting.py": 1,  # a read beside the wait for the end of a task, which ends with it
    "brokers/bell.py": 2,  # a reader with the life of its connection
}
"""Modules that create background tasks themselves, and how many times."""

CLOCK_READERS = {
    "core/clock.py",  # the seam itself
    "store/sqlite/lane.py",  # the nap of a busy handler, inside SQLite
    "store/sqlite/file.py",  # patience with a file that is being made
    "store/postgres/listener.py",  # pauses between two tries to connect
    "store/postgres/migrate.py",  # pauses between two tries to get a lock
    "store/shared/epochs.py",  # a restore waits for the end of leases, which workers measure by their own clocks
    "store/sqlite/backup.py",
    "store/postgres/backup.py",
    "app/backup.py",  # how often a long backup reports
    "engine/worker/lease.py",
    "agent/http_limits.py",  # the pause between two tries to go on with a stream
    "integrations/openai_agents/guardrails.py",  # a guardrail waits for the replay of the run beside it
    "engines/temporal/workflow.py",  # its clock is the one of Temporal
    "testing.py",  # a step that really takes time is really waited for
}
"""Modules that read the clock of the machine."""

TIME = re.compile(
    r"\btime\.(time|monotonic|sleep|perf_counter|time_ns)\(|datetime\.now\(|datetime\.utcnow\(|asyncio\.sleep\((?!0\))"
)


class Module(NamedTuple):
    """A Python file of the package."""

    path: Path
    name: str
    text: str
    tree: ast.Module


class Section(NamedTuple):
    """A statement of SQL with its name."""

    file: str
    name: str
    body: str
    line: int


class Complaint(NamedTuple):
    """A broken rule."""

    where: str
    line: int
    text: str


def modules() -> list[Module]:
    """All Python files of the package."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(Module(path, str(path.relative_to(SOURCE)), text, ast.parse(text)))
    return found


def sections() -> list[Section]:
    """All statements."""
    pattern = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)
    found = []
    for path in sorted(STATEMENTS.glob("*.sql")):
        text = path.read_text(encoding="utf-8")
        found += [
            Section(path.stem, match[1], match[2], text.count("\n", 0, match.start()) + 1)
            for match in pattern.finditer(text)
        ]
    return found


# ── rules of modules ─────────────────────────────────────────────────────────────────────────────────────────────────


def modules_begin_with_a_docstring(module: Module) -> Iterator[Complaint]:
    """A reader learns from it what lives in the file."""
    if not ast.get_docstring(module.tree):
        yield Complaint(module.name, 1, "the module has no docstring; say what lives here")


def modules_are_short(module: Module) -> Iterator[Complaint]:
    """A smell detector, not a target."""
    lines = module.text.count("\n")
    if lines > MAX_MODULE_LINES and module.name not in LISTS:
        yield Complaint(module.name, lines, f"{lines} lines: does one module do the work of two?")


def background_tasks_come_from_spawn(module: Module) -> Iterator[Complaint]:
    """`spawn` keeps a task alive until it is done and lets the simulator have it; a bare create_task does neither."""
    if module.name.startswith("cli/"):
        return
    calls = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"create_task", "ensure_future", "TaskGroup"}
    ]
    if len(calls) != SPAWNERS.get(module.name, 0):
        line = calls[-1].lineno if calls else 1
        yield Complaint(module.name, line, f"{len(calls)} bare tasks: use `spawn`, or give the reason in SPAWNERS")


def time_is_a_parameter(module: Module) -> Iterator[Complaint]:
    """Tests and the simulator move the clock."""
    if module.name.startswith(("cli/", "demo")) or module.name in CLOCK_READERS:
        return
    for number, line in enumerate(module.text.splitlines(), 1):
        if TIME.search(line.split("#")[0]):
            yield Complaint(
                module.name, number, "reads the machine's clock: take a Clock, or add the module to CLOCK_READERS"
            )


def only_the_command_line_prints(module: Module) -> Iterator[Complaint]:
    """A library writes to its log."""
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", "") == "print"
            and not module.name.startswith("cli/")
        ):
            yield Complaint(module.name, node.lineno, "print outside of the command line: use the log")


MODULE_RULES: tuple[Callable[[Module], Iterator[Complaint]], ...] = (
    modules_begin_with_a_docstring,
    modules_are_short,
    background_tasks_come_from_spawn,
    time_is_a_parameter,
    only_the_command_line_prints,
)


def imports_form_no_circle(sources: list[Module]) -> Iterator[Complaint]:
    """Nor do those that only a type checker follows. Imports inside of functions do not count."""
    names = {_dotted(module): module.name for module in sources}
    graph = {name: set(_imported(module, names.keys())) - {name} for name, module in zip(names, sources, strict=True)}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
        yield Complaint(names[circle[0]], 1, f"a circle of imports: {' ← '.join(circle)}")


def _dotted(module: Module) -> str:
    return "onward." + module.name.removesuffix(".py").replace("/", ".").removesuffix("__init__").rstrip(".")


def _imported(module: Module, names: AbstractSet[str]) -> Iterator[str]:
    statements: list[ast.stmt] = list(module.tree.body)
    while statements:
        statement = statements.pop()
        if isinstance(statement, ast.If | ast.Try):
            statements += [*statement.body, *statement.orelse]
        elif isinstance(statement, ast.Import):
            yield from [alias.name for alias in statement.names if alias.name in names]
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            for alias in statement.names:
                submodule = f"{statement.module}.{alias.name}"
                yield submodule if submodule in names else statement.module


# ── rules of statements ──────────────────────────────────────────────────────────────────────────────────────────────


def statements_have_a_sentence_and_a_caller(all_sections: list[Section], sources: list[Module]) -> Iterator[Complaint]:
    """A statement that no code names is dead."""
    callers: dict[str, list[Module]] = {}
    for module in sources:
        for name in set(re.findall(r"[\"'](\w+)[\"']", module.text)):
            callers.setdefault(name, []).append(module)
    included = {name for section in all_sections for name in re.findall(r"\{(\w+)\}", section.body)}
    for section in all_sections:
        where = f"store/statements/{section.file}.sql"
        if not re.match(r"-- [A-Z].{8,}", section.body):
            yield Complaint(where, section.line, f"{section.name}: say in a sentence what it is for")
        if section.name not in callers and section.name not in included:
            yield Complaint(where, section.line, f"{section.name}: no code uses it")


def statements_have_one_home(all_sections: list[Section], _: list[Module]) -> Iterator[Complaint]:
    """A statement that reads the same on both databases belongs into common.sql, and there alone. No name stands twice in a file."""
    bodies: dict[str, dict[str, list[str]]] = {}
    for section in all_sections:
        where = f"store/statements/{section.file}.sql"
        homes = bodies.setdefault(section.name, {})
        if section.file in homes:
            yield Complaint(where, section.line, f"{section.name}: the name stands twice in this file")
        homes[section.file] = re.sub(r"--.*|\s+", " ", section.body).split()
        if "common" in homes and len(homes) > 1:
            yield Complaint(where, section.line, f"{section.name}: it stands in common.sql too")
        if len(homes) == 2 and homes.get("postgres") == homes.get("sqlite"):
            yield Complaint(where, section.line, f"{section.name}: the same on both databases; move it to common.sql")


STATEMENT_RULES: tuple[Callable[[list[Section], list[Module]], Iterator[Complaint]], ...] = (
    statements_have_a_sentence_and_a_caller,
    statements_have_one_home,
)


def main() -> int:
    """Print all complaints."""
    sources, statements = modules(), sections()
    complaints = [complaint for rule in MODULE_RULES for module in sources for complaint in rule(module)]
    complaints += imports_form_no_circle(sources)
    complaints += [complaint for rule in STATEMENT_RULES for complaint in rule(statements, sources)]
    for complaint in sorted(set(complaints)):
        print(f"src/onward/{complaint.where}:{complaint.line}: {complaint.text}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
