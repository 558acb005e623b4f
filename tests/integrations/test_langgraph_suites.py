"""LangGraph's own tests, with Onward as checkpointer and as store."""

from __future__ import annotations

import importlib.metadata
import re

import pytest

from rig.server import Unavailable
from tests.integrations import suites
from tests.kit import not_memory

SAVER_NEEDS = [
    "aiosqlite==0.22.1",
    "langgraph-checkpoint-postgres==3.2.0",
    "langgraph-checkpoint-sqlite==3.1.2",
    "psycopg-pool==3.3.3",
    "pycryptodome==4.4.0",
    "pytest-mock==3.17.0",
    "sqlite-vec==0.1.9",
    "syrupy==7.0.0",
]
"""For its savers on other databases, which its `conftest.py` imports. They are not used."""


def suite(package: str, needs: list[str]) -> suites.Path:
    """The tests of the version that is installed, which the lock file pins."""
    try:
        return suites.fetch(package, importlib.metadata.version(package), needs)
    except Unavailable as why:
        pytest.skip(str(why))


def passed(line: str) -> int:
    found = re.search(r"(\d+) passed", line)
    assert found is not None, line
    return int(found[1])


PART = [
    "tests/test_interruption.py",
    "tests/test_parent_command.py",
    "tests/test_parent_command_async.py",
    "tests/test_strict_resume.py",
    "tests/test_subgraph_persistence.py",
    "tests/test_time_travel_async.py",
]
"""The files whose tests use the checkpointer most. `make prove` runs all of them."""


@pytest.mark.slow
@not_memory
def test_the_tests_of_langgraph_with_our_checkpointer(url: str, prove: bool, request: pytest.FixtureRequest) -> None:
    if url.startswith("postgresql"):
        request.getfixturevalue("at_length")
    folder = suite("langgraph", SAVER_NEEDS)
    files = ["tests"] if prove else PART
    line = suites.run(folder, "onward_langgraph_saver", *files, "-p", "no:asyncio", "-k", "sqlite and not aes", url=url)
    print(line)
    assert passed(line) >= (600 if prove else 80)


@pytest.mark.slow
@not_memory
def test_the_tests_of_a_store_with_ours(url: str) -> None:
    folder = suite("langgraph-checkpoint", ["pytest-mock==3.17.0"])
    words = ["tests/test_store.py", "-o", "asyncio_mode=auto"]
    line = suites.run(folder, "onward_langgraph_store", *words, url=url, processes=0)
    print(line)
    assert passed(line) >= 100
