"""Coordinators: the store on both databases, a Valkey and an etcd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rig.etcd import Etcd
from rig.valkey import Valkey
from tests.kit import running


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    with running(Valkey()) as server:
        yield server


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    with running(Etcd()) as server:
        yield server


@pytest.fixture(params=["store", "redis", "etcd"])
def coordinator(request: pytest.FixtureRequest) -> str:
    """The setting `coordinator`."""
    if request.param == "store":
        return "store"
    server = request.getfixturevalue("valkey" if request.param == "redis" else "etcd")
    return str(server.url)
