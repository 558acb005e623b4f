"""The pages of the Python reference, made from the code: `python -m rig.python_reference` writes docs/reference/.

Signatures and docstrings are read from the sources and not from the objects: so the pages are the same on every version of Python.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import textwrap
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from onward.errors import OnwardError

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
MAX_LINE = 100
"""Columns of a signature in one line."""

HEADS = {
    "onward": "`from onward import …` for everything on this page. The [quickstart](../quickstart.md) shows the names in use. `Client` and\n"
    "`SyncClient` are on [a page of their own](client.md).",
    "agents": "`from onward.agents import …` for everything on this page. The guides are [agents](../guides/agents.md),\n"
    "[models](../guides/models.md) and [MCP](../guides/mcp.md).",
    "testing": "`from onward.testing import …` for everything on this page. The guide is [testing your handlers](../guides/testing.md).",
    "client": "`from onward import Client, SyncClient`. The guide is [clients](../guides/clients.md). `SyncClient` has the same methods for code that\n"
    "is not async.",
    "errors": "`from onward.errors import …` for everything on this page. The code and the status are those of the [HTTP API](../api.md).",
}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass
class Member:
    """A method or a field of a class."""

    name: str
    signatures: list[str] = dataclasses.field(default_factory=list)
    text: str = ""
    is_field: bool = False


# ── pages ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def pages() -> dict[str, str]:
    """The text of each page, by its name."""
    onward = importlib.import_module("onward")
    return {
        "onward": _page("onward", onward, [name for name in _public(onward) if name not in {"Client", "SyncClient"}]),
        "agents": _page("agents", module := importlib.import_module("onward.agents"), _public(module)),
        "testing": _page("testing", module := importlib.import_module("onward.testing"), _public(module)),
        "client": _page("client", onward, ["Client"]),
        "errors": _page("errors", module := importlib.import_module("onward.errors"), _public(module)),
    }


def _public(module: ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted((name for name in listed if not name.startswith("_")), key=str.lower)
    return sorted(
        name for name, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__
    )


def _page(title: str, module: ModuleType, names: list[str]) -> str:
    title = title if title == "onward" else f"onward.{title}"
    parts = [f"# {title}\n\n{HEADS[title.rpartition('.')[2]]}"]
    parts += [_entry(module.__name__, name, getattr(module, name)) for name in names]
    return "\n\n".join(parts) + "\n"


def _entry(module: str, name: str, value: Any) -> str:
    if isinstance(value, type):
        return _class(name, value)
    if isinstance(value, FunctionType):
        member = _function(value)
        return _section(f"## {name}", member.signatures, member.text)
    return _alias(module, name)


def _alias(module: str, name: str) -> str:
    """A name for a type, from the module that the public one takes it from."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module and any(each.name == name for each in node.names):
            return _alias(node.module, name)
    body = _tree(module).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return _section(f"## {name}", [ast.unparse(node)], _attribute_doc(after))
    raise LookupError(f"{module} does not define {name}")


def _section(heading: str, signatures: list[str], text: str) -> str:
    code = "\n".join(signatures)
    return "\n\n".join(part for part in (heading, code and f"```python\n{code}\n```", text) if part)


def _class(name: str, cls: type) -> str:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if _is_public(base))
    members = _members(cls)
    head = f"class {name}({bases})" if bases else f"class {name}"
    made = members.pop("__init__", None)
    signatures = [head] if made is None else [f"{name}{made.signatures[0]}"]
    parts = [_section(f"## {name}", signatures, _doc(cls))]
    if issubclass(cls, OnwardError):
        parts.append(f"Code `{cls.code}`, status {cls.status}.")
    if issubclass(cls, enum.Enum):
        parts.append("\n".join(f"- `{member.name}`: `{member.value!r}`" for member in cls))
    elif inherited := [base for base in cls.__bases__ if _is_public(base) and _members(base)]:
        parts.append(f"It has the members of {' and '.join(f'`{base.__name__}`' for base in inherited)} too.")
    if fields := [member for member in members.values() if member.is_field]:
        parts.append(
            "\n".join(f"- `{field.signatures[0]}`{': ' if field.text else ''}{field.text}" for field in fields)
        )
    parts += [
        _section(f"### {name}.{member.name}", member.signatures, member.text)
        for member in sorted(members.values(), key=lambda member: member.name)
        if not member.is_field
    ]
    return "\n\n".join(parts)


@functools.cache
def _is_public(cls: type) -> bool:
    """Whether a class has a section of its own. Other classes are parts of those: their members are shown there."""
    modules = [importlib.import_module(name) for name in ("onward", "onward.agents", "onward.errors", "onward.testing")]
    return any(getattr(module, name) is cls for module in modules for name in _public(module))


# ── sources ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def _tree(module: str) -> ast.Module:
    source = inspect.getsourcefile(importlib.import_module(module))
    assert source is not None
    return ast.parse(Path(source).read_text(encoding="utf-8"))


def _node(thing: Any) -> Any:
    """The definition of a class or a function in its module; None when it is not there."""
    body = _tree(thing.__module__).body
    node: Any = None
    for name in thing.__qualname__.split("."):
        found = [each for each in body if isinstance(each, ast.ClassDef | _Function) and each.name == name]
        if not found:
            return None
        node = found[-1]
        body = node.body
    return node


def _doc(thing: Any) -> str:
    return _text(thing.__doc__ or "") if vars(thing).get("__doc__") else ""


def _text(docstring: str) -> str:
    """A docstring as Markdown: blocks that are indented become code."""
    lines = inspect.cleandoc(docstring).splitlines()
    parts: list[str] = []
    code: list[str] = []
    for line in [*lines, ""]:
        if line.startswith("    ") or (code and not line and line is not lines[-1]):
            code.append(line)
            continue
        if code:
            block = textwrap.dedent("\n".join(code)).strip()
            parts += ["```python" if _is_python(block) else "```text", block, "```", ""]
            code = []
        parts.append(line)
    return "\n".join(parts).strip()


def _is_python(block: str) -> bool:
    try:
        ast.parse(block)
    except SyntaxError:
        return False
    return True


def _function(function: Any) -> Member:
    node = _node(function)
    if node is None:
        return Member(
            function.__name__, [f"def {function.__name__}{inspect.signature(function)}"], _text(function.__doc__ or "")
        )
    siblings = [
        each for each in _tree(function.__module__).body if isinstance(each, _Function) and each.name == node.name
    ]
    return _member(siblings)


def _members(cls: type) -> dict[str, Member]:
    """The public members of a class, with those of the classes of Onward that it is made of."""
    members: dict[str, Member] = {}
    elsewhere = {part for base in cls.__mro__[1:] if _is_public(base) for part in base.__mro__}
    for part in reversed(cls.__mro__):
        if part in elsewhere or not part.__module__.startswith("onward") or (node := _node(part)) is None:
            continue
        defined: dict[str, list[_Function]] = {}
        for each, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(each, _Function) and (each.name == "__init__" or not each.name.startswith("_")):
                defined.setdefault(each.name, []).append(each)
            elif (
                isinstance(each, ast.AnnAssign)
                and isinstance(each.target, ast.Name)
                and not each.target.id.startswith("_")
            ):
                members[each.target.id] = Member(
                    each.target.id, [ast.unparse(each)], _attribute_doc(after), is_field=True
                )
        members |= {name: _member(nodes) for name, nodes in defined.items()}
    return members


def _attribute_doc(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def _member(nodes: list[_Function]) -> Member:
    text = _text(ast.get_docstring(nodes[-1]) or "")
    if any("property" in ast.unparse(mark) for mark in nodes[0].decorator_list):
        kind = nodes[0].returns
        signature = nodes[0].name if kind is None else f"{nodes[0].name}: {ast.unparse(kind)}"
        return Member(nodes[0].name, [signature], " ".join(text.split()), is_field=True)
    return Member(nodes[-1].name, [_signature(nodes[-1])], text)


def _signature(node: _Function) -> str:
    keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    head = f"{keyword} {node.name}" if node.name != "__init__" else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None and head else ""
    arguments = _arguments(node.args)
    line = f"{head}({', '.join(arguments)}){returns}"
    if len(line) <= MAX_LINE:
        return line
    return "\n".join([f"{head}(", *(f"    {argument}," for argument in arguments), f"){returns}"])


def _arguments(given: ast.arguments) -> list[str]:
    placed = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(placed) - len(given.defaults)) + list(given.defaults)
    shown = [_argument(argument, default) for argument, default in zip(placed, defaults, strict=True)]
    if given.posonlyargs:
        shown.insert(len(given.posonlyargs), "/")
    if placed and placed[0].arg in {"self", "cls"}:
        shown = shown[2:] if shown[1:2] == ["/"] else shown[1:]
    if given.vararg is not None:
        shown.append(f"*{_argument(given.vararg)}")
    elif given.kwonlyargs:
        shown.append("*")
    shown += [_argument(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return shown if given.kwarg is None else [*shown, f"**{_argument(given.kwarg)}"]


def _argument(argument: ast.arg, default: ast.expr | None = None) -> str:
    kind = "" if argument.annotation is None else f": {ast.unparse(argument.annotation)}"
    if default is None:
        return f"{argument.arg}{kind}"
    return f"{argument.arg}{kind} = {ast.unparse(default)}" if kind else f"{argument.arg}={ast.unparse(default)}"


def main() -> None:
    for name, text in pages().items():
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
