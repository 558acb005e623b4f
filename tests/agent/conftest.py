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
    """A proxy to that server. It checks in every test that the strictest provider would accept the history of each request."""
    with Strict(openai_server.url) as door:
        yield door
    assert door.refused == []
