"""The public API is closed: guides and examples import nothing else, and each change of it shows in `public_api.txt`.

Write that file anew with `python -m tests.test_public_api --write`.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import enum
import functools
import importlib
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

ROOT = Path(__file__).parents[1]
SNAPSHOT = Path(__file__).with_name("public_api.txt")
PUBLIC = (
    "onward",
    "onward.agents",
    "onward.brokers",
    "onward.client",
    "onward.errors",
    "onward.testing",
    "onward.integrations.claude",
    "onward.integrations.pydantic_ai",
    "onward.integrations.langgraph",
)

NOT_INSTALLED = {"onward.integrations.openai_agents": {"OnwardRunner", "OnwardSession"}}
"""Public modules whose framework is not among the tools of developers, and their names. Their tests install the framework."""

# ── what guides and examples import ──────────────────────────────────────────────────────────────────────────────────

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"^```(?:python|py|pycon)\b[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^\s*(?:from\s+(onward[\w.]*)\s+import\s+\(?([\w, ]*)|import\s+(onward[\w.]*))", re.MULTILINE)


def code_in(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text if path.suffix == ".py" else "\n".join(BLOCK.findall(text))


def imports(code: str) -> Iterator[tuple[str, list[str]]]:
    """Each import of Onward in a piece of code, also within docstrings: the module and the names."""
    for module, names, plain in IMPORT.findall(code):
        yield module or plain, [name.split(" as ")[0].strip() for name in names.split(",") if name.strip()]


def internal_imports(code: str) -> list[str]:
    wrong = [
        module
        for module, names in imports(code)
        if module not in PUBLIC and not (module in NOT_INSTALLED and NOT_INSTALLED[module] >= set(names))
    ]
    for module, names in imports(code):
        if module in PUBLIC:
            public = {*public_names(module), *(part.rpartition(".")[2] for part in PUBLIC if module == "onward")}
            wrong += [f"{module}.{name}" for name in names if name not in public]
    return wrong


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: str(path.relative_to(ROOT)))
def test_guides_and_examples_import_public_names_only(path: Path) -> None:
    assert internal_imports(code_in(path)) == []


def test_docstrings_of_public_modules_import_public_names_only() -> None:
    for path in sorted((ROOT / "src" / "onward").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]
        docs = "\n".join(ast.get_docstring(node) or "" for node in nodes)
        assert internal_imports(docs) == [], path


def test_an_internal_import_is_noticed() -> None:
    assert internal_imports("from onward.core.state import Fact") == ["onward.core.state"]
    assert internal_imports("import onward.agent.mcp") == ["onward.agent.mcp"]
    assert internal_imports("from onward import Onward, lazy") == ["onward.lazy"]
    assert internal_imports("from onward import Onward, testing\nfrom onward.agents import Fact") == []


# ── what guides and examples call ────────────────────────────────────────────────────────────────────────────────────

INTERNAL = re.compile(r"\b\w*app\.(?:service|store)\b|\b\w+\._[a-z]\w*")
"""Attributes that programs must not use, see docs/versioning.md."""


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: str(path.relative_to(ROOT)))
def test_guides_and_examples_use_no_internal_attributes(path: Path) -> None:
    assert INTERNAL.findall(code_in(path)) == []


def test_an_internal_attribute_is_noticed() -> None:
    code = "await app.service.forks.plan(1)\nmy_app.store.nudge()\napp._make_worker()\nawait app.fork(1)\nself.service.submit()"
    assert INTERNAL.findall(code) == ["app.service", "my_app.store", "app._make_worker"]


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────

NEVER_RAISED_TO_CALLERS = {"Problem", "DryRunTimeout", "SignInRefused", "ProviderUnavailable", "TooManySignIns"}
"""An error that the HTTP server makes into a response, one that a dry run catches, and those that a browser shows to a person who signs in."""


def test_every_error_can_be_imported_from_a_public_module() -> None:
    """A program that catches an error, or a client that gets its code over HTTP, must know its class. (The command line makes its own
    errors into exit statuses.)"""
    defined: dict[str, tuple[Path, set[str]]] = {}
    for path in sorted((ROOT / "src" / "onward").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                defined[node.name] = path, {base.id for base in node.bases if isinstance(base, ast.Name)}
    errors = {"OnwardError"}
    while more := {name for name, (_, bases) in defined.items() if bases & errors} - errors:
        errors |= more
    public = {name for module in ("onward.errors", "onward.agents") for name in public_names(module)}
    hidden = {name for name in errors - public if "cli" not in defined[name][0].parts}
    assert hidden == NEVER_RAISED_TO_CALLERS


# ── the snapshot ─────────────────────────────────────────────────────────────────────────────────────────────────────


def public_names(module_name: str) -> list[str]:
    module = importlib.import_module(module_name)
    return sorted(getattr(module, "__all__", None) or _classes(module))


def _classes(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]


def snapshot() -> str:
    """Every public name, one a line, with its members below it."""
    parts: list[str] = []
    for module_name in PUBLIC:
        parts.append(f"## {module_name}\n")
        module = importlib.import_module(module_name)
        for name in public_names(module_name):
            parts += [*_lines(module_name, name, getattr(module, name)), ""]
    return "\n".join(parts).rstrip() + "\n"


def _lines(module_name: str, name: str, value: Any) -> Iterator[str]:
    first = _first_home(value, module_name)
    if name == "__version__":
        yield f"{name}: str"
    elif first is not None:
        yield f"{name} = {first}"
    elif inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__ if _is_shown(base))
        yield f"class {name}({bases})" if bases else f"class {name}"
        yield from (f"    {line}" for line in _members(value))
    elif inspect.isfunction(value):
        yield from _functions(name, value)
    else:
        yield f"{name} = {_plain(repr(value))}"


def _is_shown(base: type) -> bool:
    """Whether a base class is told: mixins of Onward are not public, and their members are told with the class."""
    if not _is_ours(base):
        return base is not object
    return any(getattr(importlib.import_module(name), base.__name__, None) is base for name in PUBLIC)


def _first_home(value: Any, module_name: str) -> str | None:
    """Where the snapshot has this value already; a name that stands in two public modules is told once."""
    for other in PUBLIC[: PUBLIC.index(module_name)]:
        for name in public_names(other):
            if name != "__version__" and getattr(importlib.import_module(other), name) is value:
                return f"{other}.{name}"
    return None


def _members(cls: type) -> Iterator[str]:
    """The members that a user sees, in the order of their names. Those of a public base class are told there."""
    if issubclass(cls, enum.Enum):
        yield from (f"{member.name} = {member.value!r}" for member in cls)
        return
    told = {above for base in cls.__mro__[1:] if _is_ours(base) and _is_shown(base) for above in base.__mro__}
    own = [base for base in cls.__mro__ if _is_ours(base) and base not in told]
    names = {name for base in own for name in vars(base) if not name.startswith("_")} - _FRAMEWORK
    annotated = {name: kind for base in reversed(own) for name, kind in _annotations(base)}
    if issubclass(cls, BaseModel):
        yield from (f"{name}: {annotated.pop(name)}{_default_of(field)}" for name, field in cls.model_fields.items())
    elif not getattr(cls, "_is_protocol", False) and any("__init__" in vars(base) for base in own):
        yield f"__init__{_signature(cls.__init__)}"
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    assigned = {name for base in own for name in _assigned(base)}
    for name in sorted({*names, *annotated, *assigned} - fields):
        if name in annotated:
            default = getattr(cls, name, _NONE)
            yield f"{name}: {annotated[name]}{'' if default is _NONE else f' = {_value(default)}'}"
        elif name in names:
            yield from _member(name, inspect.getattr_static(cls, name))
        else:
            yield name


def _assigned(cls: type) -> Iterator[str]:
    """The public attributes that `__init__` sets."""
    init = vars(cls).get("__init__")
    if not inspect.isfunction(init) or dataclasses.is_dataclass(cls):
        return
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(init)))):
        is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_set and ast.unparse(node.value) == "self" and not node.attr.startswith("_"):
            yield node.attr


_NONE = inspect.Parameter.empty
_FRAMEWORK = {"model_config", "model_fields", "model_computed_fields"}


def _default_of(field: Any) -> str:
    return "" if field.is_required() else f" = {_value(field.default)}"


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "onward"


def _annotations(cls: type) -> list[tuple[str, Any]]:
    return [(name, kind) for name, kind in inspect.get_annotations(cls).items() if not name.startswith("_")]


def _member(name: str, member: Any) -> Iterator[str]:
    if isinstance(member, property | functools.cached_property):
        getter: Any = member.fget if isinstance(member, property) else member.func
        yield f"{name}: {_plain(inspect.get_annotations(getter).get('return', 'Any'))} (property)"
    elif isinstance(member, classmethod | staticmethod):
        yield f"{type(member).__name__} {name}{_signature(member.__func__)}"
    elif inspect.isfunction(member):
        yield from _functions(name, member)
    elif (script := getattr(member, "script", None)) is not None:  # a verb of both clients: awaited in one of them
        yield f"{type(member).__name__} {name}{_signature(script)}"
    elif isinstance(member, str | int | float | bool | None):
        yield f"{name} = {_value(member)}"
    else:
        yield name


def _functions(name: str, function: Any) -> Iterator[str]:
    for variant in typing.get_overloads(function) or [function]:
        code = inspect.unwrap(variant)
        is_async = inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)
        yield f"{'async def' if is_async else 'def'} {name}{_signature(variant)}"


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    plain = [
        one.replace(
            annotation=_NONE if one.annotation is _NONE else _Text(_plain(one.annotation)),
            default=_NONE if one.default is _NONE else _Text(_value(one.default)),
        )
        for one in signature.parameters.values()
    ]
    returns = signature.return_annotation
    returned = _NONE if returns is _NONE else _Text(re.sub(r"^(?:Script|Stream)\[(.*)\]$", r"\1", _plain(returns)))
    return str(signature.replace(parameters=plain, return_annotation=returned))


class _Text:
    """Shown as it is in a signature."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _value(value: Any) -> str:
    """A default, or "…" for one that is not plain."""
    if isinstance(value, tuple) and type(value) is tuple:
        return repr(value) if all(isinstance(one, str | int | float | bool | None) for one in value) else "(…)"
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    return "…"


def _plain(kind: Any) -> str:
    """An annotation, without modules, which may move."""
    text = kind if isinstance(kind, str) else getattr(kind, "__name__", None) or str(kind)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", text)


def test_the_public_api_is_as_it_was() -> None:
    then, now = SNAPSHOT.read_text(encoding="utf-8"), snapshot()
    changes = difflib.unified_diff(then.splitlines(), now.splitlines(), "public_api.txt", "now", lineterm="", n=0)
    assert then == now, "\n".join(
        ["the public API has changed; `python -m tests.test_public_api --write` if that is meant", *changes]
    )


if __name__ == "__main__":
    if "--write" in sys.argv:
        SNAPSHOT.write_text(snapshot(), encoding="utf-8")
    else:
        print(snapshot())
