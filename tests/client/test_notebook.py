"""The guide notebooks.md, cell by cell, at the prompt of `python -m asyncio`: cells can be run again, and the app stays open between them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onward import Context, Onward
from onward.errors import StoreUnavailable, UsageError

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "notebooks.md"


def cells() -> list[str]:
    return re.findall(r"```python\n# cell \d[^\n]*\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


def at_a_prompt(cells: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Type the cells at a prompt. It runs one statement at a time, and a block ends with an empty line."""
    typed = "".join(_as_typed(cell) for cell in cells)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.run(
        [sys.executable, "-m", "asyncio"],
        input=typed,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _as_typed(cell: str) -> str:
    lines = [line for line in cell.splitlines() if line.strip()]
    typed = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        typed.append(line)
        if line.startswith(" ") and not following.startswith(" "):
            typed.append("")
    return "\n".join(typed) + "\n"


def test_the_cells_of_the_guide_run_and_run_again(tmp_path: Path) -> None:
    open_app, handlers, work, look = cells()
    changed = handlers.replace("Hello", "Good morning")
    assert changed != handlers
    ran = at_a_prompt([open_app, handlers, work, open_app.splitlines()[-1], changed, work, look], tmp_path)
    assert "Traceback" not in ran.stderr, ran.stderr
    assert re.findall(r"(?:Hello|Good morning), Ada!", ran.stdout)[:2] == ["Hello, Ada!", "Good morning, Ada!"], ran
    assert "completed" in ran.stdout


async def test_open_counts_until_close(tmp_path: Path) -> None:
    app = Onward(f"sqlite:///{tmp_path}/onward.db")

    @app.task
    async def greet(ctx: Context) -> str:
        return "hello"

    await app.open()
    await app.open()
    async with app.worker(slots=1):
        task = await app.submit(greet)
        assert await task.result(30) == "hello"
    assert await task.result(1) == "hello", "the end of a block closed an app that `open` keeps open"
    with pytest.raises(UsageError, match="open"):
        app.move("sqlite://:memory:")
    async with app:
        await app.close()
        assert await task.result(1) == "hello", "`close` inside of a block closed the app of the block"
    with pytest.raises(StoreUnavailable, match="is not open"):
        await task.result(1)


def test_a_program_may_not_declare_a_name_twice() -> None:
    app = Onward("sqlite://:memory:")
    app.task(name="greet")(_greet)
    with pytest.raises(UsageError, match="two handlers are named 'greet'"):
        app.task(name="greet")(_greet)


async def _greet(ctx: Context) -> None:
    pass
