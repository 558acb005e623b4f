"""The code of the guide locks.md runs, and does what it says."""

from __future__ import annotations

import pytest

from onward.testing import crashes, drain, memory_app
from tests.docs.test_guides import code_of


async def test_locks_md_deploys_one_after_the_other() -> None:
    names = code_of("locks.md", "deploying.py")
    async with memory_app(names["app"]) as app:
        tasks = [await app.submit("deploy", version) for version in (1, 2, 3)]
        assert await drain(app) == []
        assert [(await task.get()).result for task in tasks] == [1, 2, 3]
        assert names["web"].largest == 3
        with pytest.raises(RuntimeError, match="stale"):
            names["web"].deploy(9, 1)


async def test_locks_md_survives_crashes() -> None:
    names = code_of("locks.md", "deploying.py")
    async for app in crashes(names["app"]):
        names["web"].largest = 0
        task = await app.submit("deploy", 7)
        assert await drain(app) == [], app.killed_at
        assert (await task.get()).result == 7, app.killed_at


def test_locks_md_runs_a_program() -> None:
    first, second = code_of("locks.md", "nightly.py")["done"]
    assert first > 0
    assert second > 0
