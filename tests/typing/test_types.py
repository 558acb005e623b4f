"""The public API for type checkers: an application that they accept, mistakes that they find, and no unknown types."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CLEAN, MISTAKES = HERE / "typed_app.py", HERE / "typed_mistakes.py"
PUBLIC = ("onward", "onward.client", "onward.errors", "onward.testing")
"""The modules whose names users import."""

needs_pyright = pytest.mark.skipif(
    importlib.util.find_spec("pyright") is None, reason="pyright is not installed: pip install 'pyright[nodejs]'"
)


def marked(path: Path) -> set[tuple[str, int]]:
    """The lines of a file that have a mistake."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {(path.name, number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.stdout


def by_mypy(cache: Path) -> dict[tuple[str, int], str]:
    output = run(
        "mypy", "--strict", "--no-pretty", "--no-error-summary", "--hide-error-context", f"--cache-dir={cache}",
        "--explicit-package-bases", f"--config-file={os.devnull}", str(CLEAN), str(MISTAKES),
        MYPYPATH=f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    )  # fmt: skip
    found = re.finditer(r"^(?P<path>[^:\n]+):(?P<line>\d+): error: (?P<text>.*)$", output, re.MULTILINE)
    return {(Path(error["path"]).name, int(error["line"])): error["text"] for error in found}


def by_pyright(folder: Path) -> dict[tuple[str, int], str]:
    settings = {
        "include": [str(CLEAN), str(MISTAKES)],
        "extraPaths": [str(ROOT / "src"), str(ROOT)],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    output = run("pyright", "--outputjson", "-p", str(folder), "--pythonpath", sys.executable)
    errors = [each for each in json.loads(output)["generalDiagnostics"] if each["severity"] == "error"]
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1): each["message"] for each in errors}


def test_mypy_accepts_the_application_and_finds_each_mistake(tmp_path: Path) -> None:
    assert by_mypy(tmp_path).keys() == marked(MISTAKES)


@needs_pyright
def test_pyright_accepts_the_application_and_finds_each_mistake(tmp_path: Path) -> None:
    assert by_pyright(tmp_path).keys() == marked(MISTAKES)


@needs_pyright
@pytest.mark.parametrize("module", PUBLIC)
def test_the_types_of_all_public_names_are_known(module: str) -> None:
    report = json.loads(run("pyright", "--outputjson", "--ignoreexternal", "--verifytypes", module))
    unknown = [
        each["name"] for each in report["typeCompleteness"]["symbols"] if each["isExported"] and not each["isTypeKnown"]
    ]
    assert unknown == []
