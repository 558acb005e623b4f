"""The README is true: its files run, and its commands do what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rig.processes import Child

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the README, as a reader would save them."""
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", README, re.DOTALL):
        (tmp_path / name).write_text(code, encoding="utf-8")
    return tmp_path


def environment() -> dict[str, str]:
    bin_folder = str(Path(sys.executable).parent)
    return {k: v for k, v in os.environ.items() if not k.startswith("ONWARD")} | {
        "PATH": f"{bin_folder}:{os.environ['PATH']}"
    }


@pytest.mark.slow
def test_the_program_of_the_readme_runs(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "web.example.com is live\n", done.stderr
    assert done.returncode == 0


def test_the_agent_of_the_readme_is_one(folder: Path) -> None:
    program = "import janitor as j; print(*j.app.handlers, type(j.old_logs()).__name__, j.delete('/no/such/file'))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "janitor dict /no/such/file is gone\n", done.stderr


@pytest.mark.slow
def test_the_commands_of_the_readme_work(folder: Path) -> None:
    commands = re.findall(r"^\$ (onward .*?) *(?:#.*)?$", README, re.MULTILINE)
    assert commands == ["onward worker deploy:app", "onward submit deploy '\"web\"' --follow"]
    with Child.module("onward", "worker", "deploy:app", cwd=folder, env=environment()):
        for _ in range(100):  # the worker must have registered its handlers
            done = subprocess.run(
                commands[1],
                shell=True,
                cwd=folder,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            if done.returncode != 4:
                break
    assert done.returncode == 0, done.stdout + done.stderr
    assert "web.example.com is live" in done.stdout


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:`|\$ )make (\w+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_of_the_documents_have_targets() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
