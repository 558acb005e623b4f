"""All tests of this folder run with payloads encrypted."""

from __future__ import annotations

import pytest


@pytest.fixture
def encrypted() -> bool:
    return True
