"""The public API for type checkers: an application that they accept, mistakes that they find, and no unknown types."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onward import Context
from onward.engine.context import sync_context

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CLEAN, MISTAKES = HERE / "typed_app.py", HERE / "typed_mistakes.py"
PUBLIC = ("onward", "onward.agents", "onward.client", "onward.errors", "onward.testing")
"""The modules whose names users import."""

pytestmark = pytest.mark.slow

needs_pyright = pytest.mark.skipif(
    importlib.util.find_spec("pyright") is None, reason="pyright is not installed: pip install 'pyright[nodejs]'"
)


def marked(path: Path) -> set[tuple[str, int]]:
    """The lines of a file that have a mistake."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {(path.name, number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def run(tool: str, *arguments: str) -> str:
    """The output of a tool. It checks the code of this checkout, also where another Onward is installed."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    before = os.environ.get("PYTHONPATH")
    done = subprocess.run(
        [sys.executable, "-m", tool, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{before}" if before else path, "MYPYPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.stdout


def by_mypy(cache: Path) -> dict[tuple[str, int], str]:
    output = run(
        "mypy", "--strict", "--no-pretty", "--no-error-summary", "--hide-error-context", "--follow-imports=silent", f"--cache-dir={cache}",
        "--explicit-package-bases", f"--config-file={os.devnull}", str(CLEAN), str(MISTAKES),
    )  # fmt: skip
    errors = re.finditer(r"^(?P<path>[^:\n]+):(?P<line>\d+): error: (?P<text>.*)$", output, re.MULTILINE)
    return {(Path(error["path"]).name, int(error["line"])): error["text"] for error in errors}


def pyright(*arguments: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable, *arguments))
    return report


def by_pyright() -> dict[tuple[str, int], str]:
    diagnostics = pyright("--project", str(HERE))["generalDiagnostics"]
    errors = [error for error in diagnostics if error["severity"] == "error"]
    return {(Path(error["file"]).name, error["range"]["start"]["line"] + 1): error["message"] for error in errors}


def test_mypy_accepts_the_application_and_finds_each_mistake(tmp_path: Path) -> None:
    assert by_mypy(tmp_path).keys() == marked(MISTAKES)


@needs_pyright
def test_pyright_accepts_the_application_and_finds_each_mistake() -> None:
    assert by_pyright().keys() == marked(MISTAKES)


def test_the_context_of_plain_functions_declares_each_method_of_the_other() -> None:
    tree = ast.parse(inspect.getsource(sync_context))
    (typed,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "SyncContext"]
    (block,) = [node for node in typed.body if isinstance(node, ast.If)]
    declared = {node.name for node in block.body if isinstance(node, ast.FunctionDef)}
    assert declared == {name for name in vars(Context) if not name.startswith("_")}


def public_classes_and_functions() -> set[str]:
    """The public names by the modules where they are defined, with the base classes that their members come from."""
    qualified: set[str] = set()
    for module in map(importlib.import_module, PUBLIC):
        names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        for value in (getattr(module, name) for name in names):
            for home in inspect.getmro(value) if inspect.isclass(value) else [value]:
                if getattr(home, "__module__", "").startswith("onward") and hasattr(home, "__qualname__"):
                    qualified.add(f"{home.__module__}.{home.__qualname__}")
    return qualified


@needs_pyright
def test_the_types_of_all_public_names_are_known() -> None:
    report = pyright("--ignoreexternal", "--verifytypes", "onward")["typeCompleteness"]
    assert Path(report["packageRootDirectory"]).samefile(ROOT / "src" / "onward"), "another onward is installed"
    symbols = {symbol["name"]: symbol for symbol in report["symbols"]}
    public = public_classes_and_functions()
    assert public <= symbols.keys()
    members = [name for name in symbols if name in public or name.rpartition(".")[0] in {*public, *PUBLIC}]
    assert len(members) > 300
    assert [name for name in members if not symbols[name]["isTypeKnown"]] == []
