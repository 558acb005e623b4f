"""The Temporal server of the rig."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("temporalio")

from rig.temporal import Temporal
from tests.kit import running


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port that takes connections and closes them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_all() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.close()

        thread = threading.Thread(target=close_all)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_port_that_takes_connections_is_not_ready(deaf_port: int) -> None:
    with pytest.raises(ConnectionError):
        Temporal(port=deaf_port).ready()


@pytest.mark.slow
def test_it_starts_again_after_a_kill() -> None:
    with running(Temporal(), "no Temporal server") as server:
        server.kill()
        server.start()
        assert server.ready()
