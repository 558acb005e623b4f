"""A short check of the installed package without pytest, for systems on which the tests do not run (Windows): `python -m tools.smoke`.

It imports every module, does a task with steps and a sleep on a SQLite file in two processes, and reads it with the command line.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

import onward
from onward import Onward

APP = """
from onward import Context, Onward

app = Onward(poll_s=0.1)


async def add(a: int, b: int) -> int:
    return a + b


@app.task
async def total(ctx: Context, numbers: list[int]) -> int:
    result = 0
    for number in numbers:
        result = await ctx.step(add, result, number)
        await ctx.sleep(0.1)
    return result
"""
WORK = """
import asyncio
from smoke_app import app


async def main():
    async with app, app.worker():
        handle = await app.submit("total", [1, 2, 3])
        print(await handle.result(timeout=60))


asyncio.run(main())
"""


def main() -> None:
    """Run the checks; an assertion or an exception says what failed."""
    print(f"{sys.platform}, Python {sys.version.split()[0]}: {_import_all()} modules")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "smoke_app.py").write_text(APP, encoding="utf-8")
        os.environ["ONWARD_DB"] = f"sqlite:///{(folder / 'onward.db').as_posix()}"
        assert _run(folder, "-c", WORK).strip() == "6"
        listed = json.loads(_run(folder, "-m", "onward", "list", "--json"))
        assert [(task["task"], task["state"]) for task in listed["tasks"]] == [("total", "completed")], listed
        _run(folder, "-m", "onward", "doctor")
        asyncio.run(_replays(folder, listed["tasks"][0]["task_id"]))
    print("a worker, the command line and the doctor work")


def _import_all() -> int:
    names = [module.name for module in pkgutil.walk_packages(onward.__path__, "onward.")]
    imported = 0
    for name in names:
        if name.endswith("__main__"):
            continue
        try:
            importlib.import_module(name)
        except ImportError as error:
            if (error.name or "onward").partition(".")[0] in {"onward", "fcntl", "pwd", "resource", "termios"}:
                raise
            print(f"  {name}: the package {error.name} is not installed")
            continue
        imported += 1
    return imported


def _run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


async def _replays(folder: Path, task_id: str) -> None:
    async with Onward(f"sqlite:///{(folder / 'onward.db').as_posix()}") as app:
        task = await app.get(task_id)
        assert (task.state, task.result) == ("completed", 6), task


if __name__ == "__main__":
    main()
