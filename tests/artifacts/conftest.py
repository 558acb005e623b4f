"""One suite, every place: the database (of each kind), a folder, and a bucket of a real S3-compatible server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from onward import Onward
from onward.app.connect import open_shelf
from onward.artifacts.keeper import Artifacts
from onward.store.port.core import Store
from rig.rclone import Rclone
from tests.kit import next_id, running

BUCKET = "artifacts"
PLACES = ("database, sqlite file", "database, sqlite memory", "database, postgres", "directory", "s3")
each_shelf = pytest.mark.parametrize("where", ["directory", "s3"], indirect=True)
only_directory = pytest.mark.parametrize("where", ["directory"], indirect=True)
only_s3 = pytest.mark.parametrize("where", ["s3"], indirect=True)
in_one_database = pytest.mark.parametrize("where", ["database, sqlite memory", "directory", "s3"], indirect=True)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Rclone]:
    with running(Rclone(BUCKET), "no S3-compatible server") as server:
        yield server


@pytest.fixture
def s3(s3_server: Rclone, monkeypatch: pytest.MonkeyPatch) -> Rclone:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture(params=PLACES)
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kind(where: str) -> str:
    """The database under it."""
    return where.partition(", ")[2] or "sqlite memory"


@pytest.fixture
def place(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The setting."""
    if where == "s3":
        request.getfixturevalue("s3")
        return f"s3://{BUCKET}/tests/{next_id()}/"
    return f"file://{tmp_path / 'artifacts'}" if where == "directory" else "database"


@pytest.fixture
async def kept(store: Store, place: str) -> Artifacts:
    """What keeps artifacts."""
    return Artifacts(store, open_shelf(place))


@pytest.fixture
async def app(url: str, place: str) -> AsyncIterator[Onward]:
    app = Onward(url, artifacts=place, lease_s=1.0, heartbeat_s=0.1, poll_s=0.05, grace_s=1.0, slots=10)
    async with app:
        yield app
