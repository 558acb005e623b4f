"""Fixtures of the agent tests: a strict OpenAI-compatible server that is not part of this project."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rig.aimock import AIMock
from rig.strict import Strict
from tests.kit import running


@pytest.fixture(scope="session")
def openai_server() -> Iterator[AIMock]:
    with running(AIMock(), "no OpenAI-compatible server") as mock:
        yield mock


@pytest.fixture
def door(openai_server: AIMock) -> Iterator[Strict]:
    """A proxy to that server. It checks in every test that the strictest provider would accept the history of each request."""
    with Strict(openai_server.url) as door:
        yield door
    assert door.refused == []
