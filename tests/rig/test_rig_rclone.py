"""The S3-compatible server that the tests use: it keeps objects over a restart, and refuses wrong keys."""

from __future__ import annotations

from collections.abc import Iterator

import obstore
import pytest
from obstore.exceptions import PermissionDeniedError
from obstore.store import S3Store

from rig.rclone import Rclone
from tests.kit import running


@pytest.fixture
def server() -> Iterator[Rclone]:
    with running(Rclone("one"), "no S3-compatible server") as server:
        yield server


def client(server: Rclone, **over: str) -> S3Store:
    settings = {name.removeprefix("AWS_").lower(): value for name, value in server.environment.items()}
    return S3Store("one", client_options={"allow_http": True}, **{**settings, **over})  # type: ignore[arg-type]


def test_an_object_is_there_also_after_a_restart(server: Rclone) -> None:
    obstore.put(client(server), "a/b", b"x" * 6_000_000)
    assert server.objects("one") == {"a/b": b"x" * 6_000_000}
    server.kill()
    server.start()
    assert len(obstore.get(client(server), "a/b").bytes()) == 6_000_000


def test_a_wrong_key_is_refused(server: Rclone) -> None:
    with pytest.raises(PermissionDeniedError):
        obstore.put(client(server, secret_access_key="wrong"), "a/b", b"x")
    assert server.objects("one") == {}
