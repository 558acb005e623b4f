"""Fixtures of the agent tests: a strict OpenAI-compatible server that is not part of this project."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rig.aimock import AIMock
from rig.server import Unavailable
from rig.strict import Strict


@pytest.fixture(scope="session")
def openai_server() -> Iterator[AIMock]:
    try:
        mock = AIMock().start()
    except Unavailable as why:
        pytest.skip(f"no OpenAI-compatible server: {why}")
    yield mock
    mock.close()


@pytest.fixture
def door(openai_server: AIMock) -> Iterator[Strict]:
    """The way to that server. What comes through it, in any test, has a history that the strictest provider takes."""
    with Strict(openai_server.url) as door:
        yield door
    assert door.refused == []
