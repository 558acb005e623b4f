"""What the tests of the agent share: a strict OpenAI-compatible server that nobody here wrote."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rig.aimock import AIMock
from rig.server import Unavailable


@pytest.fixture(scope="session")
def openai_server() -> Iterator[AIMock]:
    try:
        mock = AIMock().start()
    except Unavailable as why:
        pytest.skip(f"no OpenAI-compatible server: {why}")
    yield mock
    mock.close()
