"""The etcd that the tests use: it answers at once, goes on with its data after a stop, and leaves nothing."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from rig import server
from rig.etcd import Etcd
from tests.kit import running


def ask(etcd: Etcd, verb: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{etcd.port}/v3/{verb}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=5) as response:
        return json.load(response)


def test_etcd_keeps_its_data_over_a_stop_and_leaves_nothing() -> None:
    with running(Etcd()) as etcd:
        ask(etcd, "kv/put", {"key": "a2V5", "value": "dmFsdWU="})
        etcd.stop()
        etcd.start()
        assert ask(etcd, "kv/range", {"key": "a2V5"})["kvs"][0]["value"] == "dmFsdWU="
        pid, home = etcd.pid, etcd.home
    assert pid is not None
    assert not server.alive(pid)
    assert not home.exists()
