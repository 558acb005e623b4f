"""The tests that the guides show pass as they are pasted into an empty project, with pytest and Onward's plugin alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
ALONE = ("-p", "no:asyncio", "-p", "no:anyio", "-p", "no:xdist", "-p", "no:cacheprovider")
"""Of the plugins that are installed here, those that a user with pytest alone has not."""


def paste(guide: str, folder: Path) -> None:
    """Write the files of a guide into a folder."""
    text = (GUIDES / guide).read_text(encoding="utf-8")
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(code, encoding="utf-8")


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", *ALONE, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("guide", "passing"), [("testing.md", 6), pytest.param("agents.md", 1, marks=pytest.mark.slow)]
)
def test_the_tests_of_a_guide_pass_as_pasted(guide: str, passing: int, tmp_path: Path) -> None:
    paste(guide, tmp_path)
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{passing} passed" in ran.stdout


ASYNC_TEST = """
import asyncio
import pytest

@pytest.fixture
def two():
    return 2

@pytest.mark.parametrize("three", [3])
async def test_arguments(two, three):
    await asyncio.sleep(0)
    assert two * three == 6

async def test_fails():
    await asyncio.sleep(0)
    assert False, "on purpose"

class TestMethods:
    async def test_method(self, two):
        assert two == 2
"""


@pytest.mark.slow
def test_async_tests_are_really_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(ASYNC_TEST, encoding="utf-8")
    ran = run_pytest(tmp_path)
    assert "2 passed" in ran.stdout, ran.stdout
    assert "1 failed" in ran.stdout, ran.stdout
    assert "on purpose" in ran.stdout, ran.stdout


@pytest.mark.slow
def test_without_the_plugin_pytest_refuses_async_tests(tmp_path: Path) -> None:
    """Shows that the plugin runs the tests above, and no other plugin that is installed here."""
    (tmp_path / "test_it.py").write_text(ASYNC_TEST, encoding="utf-8")
    ran = run_pytest(tmp_path, "-p", "no:onward")
    assert "3 failed" in ran.stdout, ran.stdout


@pytest.mark.slow
def test_the_plugin_leaves_tests_to_pytest_asyncio(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import asyncio\nimport pytest\n\n"
        "@pytest.fixture\nasync def loop():\n    return asyncio.get_running_loop()\n\n"
        "async def test_loop(loop):\n    assert asyncio.get_running_loop() is loop\n",
        encoding="utf-8",
    )
    words = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", "-q", *words]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
