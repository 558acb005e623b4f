"""The public names, the port, the settings, the migrations and the imports keep their rules. `tools/house_rules.py` has the rules of
files; here each of those is shown to find its fault."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import onward
from onward.config import Settings, variable
from rig import openai_agents
from rig.server import Unavailable
from tools import house_rules

ROOT = Path(__file__).parents[1]


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


def test_there_are_fewer_than_thirty_public_names_and_each_is_there() -> None:
    assert len(onward.__all__) < 30
    assert onward.__all__ == sorted(onward.__all__)
    assert {name for name in onward.__all__ if not hasattr(onward, name)} == set()
    assert set(onward.__all__) <= set(dir(onward))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = onward.nothing


def test_every_verb_of_the_port_says_what_it_promises() -> None:
    from onward.store.port.core import Store

    properties = inspect.getmembers(Store, _is_property)
    parts = get_type_hints(Store) | {name: get_type_hints(part.fget)["return"] for name, part in properties}
    ports = {"": Store} | {name: part for name, part in parts.items() if part not in {bool, str}}
    assert len(ports) > 10
    for name, port in ports.items():
        verbs = {verb for verb, _ in inspect.getmembers(port, inspect.isfunction) if not verb.startswith("_")}
        assert [verb for verb in verbs if not inspect.getdoc(getattr(port, verb))] == [], name
        assert len(verbs) <= 30, "a port that everybody can keep in mind, with what it inherits"


def _is_property(member: object) -> bool:
    return isinstance(member, property)


def test_every_error_says_what_it_means() -> None:
    from onward import errors

    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == "onward.errors"]
    assert [kind.__name__ for kind in kinds if not kind.__doc__] == []
    tree = errors.__doc__ or ""
    assert [kind.__name__ for kind in kinds if kind.__name__ not in tree] == [], "draw the exception tree"


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_setting_is_explained_with_its_variable_and_its_default() -> None:
    rows = [line for line in read(ROOT / "docs" / "settings.md").splitlines() if line.startswith("| `")]
    told = {cells[0]: cells for cells in ([cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows)}
    assert set(told) == {field.name for field in dataclasses.fields(Settings)}
    for field in dataclasses.fields(Settings):
        name, environment, default, text = told[field.name]
        assert environment == variable(name)
        if field.default is dataclasses.MISSING:
            assert default == ""
            continue
        assert default == (f"{field.default:g}" if isinstance(field.default, float) else str(field.default))
        assert len(text) > 20


def test_migrations_are_numbered_without_a_gap_and_alike_on_both_databases() -> None:
    from onward.store import migrate

    names = {dialect: [m.name for m in migrate.load(dialect)] for dialect in ("postgres", "sqlite")}
    assert names["postgres"] == names["sqlite"]
    assert [int(name[:4]) for name in names["sqlite"]] == list(range(1, len(names["sqlite"]) + 1))


# ── the rules of files ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (house_rules.modules_begin_with_a_docstring, "import os\n"),
        (house_rules.modules_are_short, '"""Long."""\n' + "\n" * house_rules.MAX_MODULE_LINES),
        (house_rules.background_tasks_come_from_spawn, '"""Spawns."""\nasyncio.create_task(work())\n'),
        (house_rules.time_is_a_parameter, '"""Looks at the clock."""\nnow = time.time()\n'),
        (house_rules.only_the_command_line_prints, '"""Prints."""\nprint(1)\n'),
    ],
)
def test_a_rule_of_modules_finds_its_fault(rule: Any, text: str) -> None:
    planted = house_rules.Module(house_rules.SOURCE / "core" / "planted.py", "core/planted.py", text, ast.parse(text))
    clean = house_rules.Module(planted.path, planted.name, '"""Fine."""\n', ast.parse('"""Fine."""'))
    assert [complaint.where for complaint in rule(planted)] == ["core/planted.py"]
    assert list(rule(clean)) == []


def test_a_circle_of_imports_is_found() -> None:
    texts = {
        "core/a.py": "from onward.core import b\n",
        "core/b.py": "if TYPE_CHECKING:\n    from onward.core.c import C\n",
        "core/c.py": "from onward.core.a import A\n",
    }

    def complaints() -> list[house_rules.Complaint]:
        sources = [
            house_rules.Module(house_rules.SOURCE / name, name, text, ast.parse(text)) for name, text in texts.items()
        ]
        return list(house_rules.imports_form_no_circle(sources))

    (complaint,) = complaints()
    assert all(f"onward.core.{name}" in complaint.text for name in "abc")
    texts["core/c.py"] = "def late():\n    from onward.core.a import A\n"
    assert complaints() == []


def test_the_rules_of_statements_find_their_faults() -> None:
    same = "-- Finds rows by their name.\nSELECT 1\n"
    planted = [
        house_rules.Section("common", "unused", same, 1),
        house_rules.Section("common", "mute", "SELECT 1\n", 5),
        house_rules.Section("postgres", "twin", same, 1),
        house_rules.Section("sqlite", "twin", same, 1),
        house_rules.Section("sqlite", "twice", same, 5),
        house_rules.Section("sqlite", "twice", same, 9),
    ]
    text = '"""Calls."""\nNAMES = ["mute", "twin", "twice"]\n'
    callers = [house_rules.Module(house_rules.SOURCE / "a.py", "a.py", text, ast.parse(text))]
    complaints = {
        complaint.text.split(":")[0] for rule in house_rules.STATEMENT_RULES for complaint in rule(planted, callers)
    }
    assert complaints == {"unused", "mute", "twin", "twice"}


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
    with contextlib.suppress(Unavailable):
        openai_agents.obtain()
    missing = () if importlib.util.find_spec("agents") else ("onward.integrations.openai_agents",)
    for module in pkgutil.walk_packages(onward.__path__, "onward."):
        if module.name.startswith("onward.engines.cadence.") and sys.version_info >= (3, 14):
            continue  # the client of Cadence has no release for it
        if module.name.startswith(missing):
            continue  # the SDK is in no lock, and cannot be installed here
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_the_version_is_said_once() -> None:
    from onward.app.application import VERSION

    assert f'version = "{VERSION}"' in read(ROOT / "pyproject.toml")
    assert onward.__version__ == VERSION


def test_each_dependency_with_extras_is_locked_with_them() -> None:
    """pip 23 takes the newest version of `coverage[toml]`, not the locked `coverage`, and then refuses it for want of a hash."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    lines = [line for line in read(ROOT / "requirements/dev.txt").splitlines() if "==" in line]
    names = [re.split(r" [\\;]", line)[0] for line in lines]  # `name[one, two]==1.0 ; sys_platform == 'linux' \`
    locked = {requirement.name: requirement.extras for requirement in map(Requirement, names)}
    needed = [Requirement(text) for name in locked for text in _requires(name, requires) if "extra ==" not in text]
    assert len(needed) > 100
    missing = [str(need) for need in needed if need.name in locked and not need.extras <= locked[need.name]]
    assert missing == []


def _requires(name: str, requires: Any) -> list[str]:
    try:
        return requires(name) or []
    except importlib.metadata.PackageNotFoundError:  # of another platform or version of Python
        return []
