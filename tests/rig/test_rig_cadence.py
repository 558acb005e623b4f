"""The Cadence server of the rig."""

from __future__ import annotations

import asyncio
import datetime
import sqlite3
import uuid
from pathlib import Path
from typing import Any

import pytest

from rig import cadence
from rig.server import Unavailable
from tests.kit import eventually, running


def test_without_go_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cadence, "HOME", tmp_path / "home")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        Unavailable, match=r"no Cadence server here: it is built with Go, and there is no `go` in \$PATH"
    ):
        cadence.program()


def test_a_build_that_failed_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    builds = tmp_path / "builds"
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho one >> {builds}\necho no network >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setattr(cadence, "HOME", tmp_path / "home")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for _ in range(2):
        with pytest.raises(Unavailable, match="failed: no network"):
            cadence.program()
    assert builds.read_text() == "one\n"


@pytest.mark.slow
@pytest.mark.xdist_group("cadence")
def test_it_starts_again_after_a_kill() -> None:
    pytest.importorskip("cadence", reason="the client of Cadence is not installed: pip install 'onward[cadence]'")
    with running(cadence.Cadence(), "no Cadence server") as server:
        server.kill()
        server.start()
        assert server.ready()


@pytest.mark.slow
@pytest.mark.xdist_group("cadence")
def test_it_compares_times_as_times() -> None:
    """Cadence writes times to SQLite as strings without trailing zeros. As a string, 12:00:21.5 is before 12:00:21, and a server that compares
    strings passes over timers: the timeout of an activity never comes."""
    pytest.importorskip("cadence", reason="the client of Cadence is not installed: pip install 'onward[cadence]'")
    with running(cadence.Cadence(), "no Cadence server") as server:
        assert asyncio.run(_is_listed_from_its_second_on(server.address))
        for name in ("cadence", "visibility"):
            database = sqlite3.connect(server.folder("data") / f"{name}.db")
            tables = [
                sql for (sql,) in database.execute("SELECT sql FROM sqlite_master WHERE sql LIKE '%DATETIME(6)%'")
            ]
            database.close()
            assert tables
            assert all(sql.count("DATETIME(6)") == sql.count("DATETIME(6) COLLATE TIME") for sql in tables)


async def _is_listed_from_its_second_on(address: str) -> bool:
    """Whether a list of the workflows that started at a full second or later has one that started within this second."""
    from cadence.api.v1.service_visibility_pb2 import ListOpenWorkflowExecutionsRequest
    from cadence.api.v1.service_visibility_pb2_grpc import VisibilityAPIStub
    from cadence.api.v1.visibility_pb2 import StartTimeFilter, WorkflowExecutionFilter
    from cadence.client import Client

    client = Client(target=address, domain=cadence.DOMAIN)
    name, hour = f"times-{uuid.uuid4().hex}", datetime.timedelta(hours=1)

    async def started(earliest_s: int) -> list[Any]:
        times = StartTimeFilter()
        times.earliest_time.FromSeconds(earliest_s)
        times.latest_time.FromSeconds(2**32)
        request = ListOpenWorkflowExecutionsRequest(
            domain=cadence.DOMAIN,
            page_size=10,
            start_time_filter=times,
            execution_filter=WorkflowExecutionFilter(workflow_id=name),
        )
        return list((await VisibilityAPIStub(client._channel).ListOpenWorkflowExecutions(request)).executions)

    try:
        await client.start_workflow(
            "times",
            workflow_id=name,
            task_list=name,
            execution_start_to_close_timeout=hour,
            task_start_to_close_timeout=hour,
        )
        [execution] = await eventually(lambda: started(0))
        return len(await started(execution.start_time.seconds)) == 1
    finally:
        await client.close()
