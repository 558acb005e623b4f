"""Coordinators: the store on both databases, a Valkey and an etcd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rig.daemon import Daemon
from rig.etcd import Etcd
from rig.server import Unavailable
from rig.valkey import Valkey


def _started(kind: type[Daemon]) -> Iterator[Daemon]:
    try:
        server = kind().start()
    except Unavailable as why:
        pytest.skip(str(why))
    yield server
    server.close()


@pytest.fixture(scope="session")
def valkey() -> Iterator[Daemon]:
    yield from _started(Valkey)


@pytest.fixture(scope="session")
def etcd() -> Iterator[Daemon]:
    yield from _started(Etcd)


@pytest.fixture(params=["store", "redis", "etcd"])
def coordinator(request: pytest.FixtureRequest) -> str:
    """The setting `coordinator`."""
    if request.param == "store":
        return "store"
    server = request.getfixturevalue("valkey" if request.param == "redis" else "etcd")
    return str(server.url)
