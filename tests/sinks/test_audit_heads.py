"""Heads of the audit log go out of the database: to a file, to syslog, to a URL; softly, and never in the way of work."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.core.audit import AuditEvent, Head
from onward.errors import BadSetting, BadWebhook
from onward.sinks import audit_heads, signature
from onward.sinks.audit_heads import HeadExporter, exporting, parse_outlets
from onward.store.port.core import Store
from onward.telemetry import AUDIT_HEADS, counters
from tests.kit import HandClock, Time, eventually, not_memory
from tests.service.test_audit import tamper
from tests.sinks.conftest import SECRET, Office
from tests.sinks.receiver import OK, Receiver, answer


def exporter(office: Office, setting: str) -> HeadExporter:
    return HeadExporter(
        office.store.audit, parse_outlets(setting, lambda: office.app.webhooks), office.time._clock, interval_s=60
    )


async def add(store: Store, *subjects: str) -> None:
    for subject in subjects:
        await store.audit.append(AuditEvent("cancel", subject))


def counted() -> dict[str, float]:
    return {labels[0]: number for (name, labels), number in counters.snapshot()[0].items() if name == AUDIT_HEADS}


@pytest.fixture(autouse=True)
def _counting() -> None:
    counters.on = True


async def test_each_head_is_one_line_of_a_file(office: Office, tmp_path: Path) -> None:
    file = tmp_path / "heads"
    file.write_text("an earlier line\n")
    exports = exporter(office, f"file://{file}")
    await exports.export()
    assert file.read_text() == "an earlier line\n", "an empty log has no head"
    heads = []
    for subject in ("a", "b"):
        await add(office.store, subject)
        heads.append(str(await office.store.audit.head()))
        for _ in range(3):  # the same head is written once
            await exports.export()
    _, *lines = file.read_text().splitlines()
    assert [line.split()[1] for line in lines] == heads
    assert all(line.split()[0].endswith("Z") for line in lines)
    assert counted() == {"exported": 2}
    assert (await office.app.service.audit.verify(heads)).sound


async def test_a_head_goes_to_syslog(office: Office, tmp_path: Path) -> None:
    await add(office.store, "a")
    head = await office.store.audit.head()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as local,
    ):
        udp.bind(("127.0.0.1", 0))
        local.bind(str(tmp_path / "log"))
        for receiver in (udp, local):
            receiver.settimeout(10)
        port = udp.getsockname()[1]
        await exporter(office, f"syslog://127.0.0.1:{port} syslog://{tmp_path}/log").export()
        for receiver in (udp, local):
            assert receiver.recv(1000) == f"<84>onward: audit head {head}".encode()
    assert counted() == {"exported": 2}


async def test_a_head_is_a_signed_event(office: Office, receiver: Receiver) -> None:
    await add(office.store, "a", "b")
    head = await office.store.audit.head()
    await exporter(office, receiver.url()).export()
    (got,) = receiver.got
    event = got.json
    assert (event["type"], event["subject"], event["source"]) == ("dev.onward.audit.head", "2", "/onward/audit")
    assert event["data"] == {"number": 2, "hash": head.hash, "head": str(head)}
    assert event["id"] == got.id == f"audit.2.{head.hash[-16:]}"
    timestamp = int(got.headers["webhook-timestamp"])
    assert got.headers["webhook-signature"] == signature.sign(signature.parse(SECRET), got.id, timestamp, got.body)


async def test_an_outlet_that_fails_is_logged_and_counted_and_gets_the_next_head(
    office: Office, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.says = [answer(500), OK]
    missing, there = tmp_path / "no folder" / "heads", tmp_path / "heads"
    exports = exporter(office, f"file://{tmp_path}/no%20folder/heads {there} {receiver.url()}")
    await add(office.store, "a")
    with caplog.at_level(logging.WARNING, "onward.audit"):
        await exports.export()
    assert (len(caplog.records), counted()) == (2, {"failed": 2, "exported": 1})
    assert f"was not exported to file {missing}" in caplog.text
    assert "HTTP 500" in caplog.text
    missing.parent.mkdir()
    await exports.export()
    assert counted() == {"failed": 2, "exported": 3}
    assert missing.read_text().split()[1] == there.read_text().split()[1] == str(await office.store.audit.head())


@not_memory
async def test_an_outlet_that_hangs_holds_up_nothing(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipe without a reader: to open it for writing takes for ever."""
    monkeypatch.setattr(audit_heads, "EXPORT_TIMEOUT_S", 0.05)
    pipe, there = tmp_path / "pipe", tmp_path / "heads"
    os.mkfifo(pipe)
    exports = exporter(office, f"{pipe} {there}")
    for subject in ("a", "b", "c"):
        await add(office.store, subject)
        await exports.export()
    assert len(there.read_text().splitlines()) == 3
    assert counted() == {"failed": 3, "exported": 3}
    assert "it still writes an earlier head" in caplog.text, "no second thread waits beside the first"
    os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))  # lets the thread go


async def test_a_log_that_was_cut_off_while_the_process_runs_is_reported(
    office: Office, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exports = exporter(office, str(tmp_path / "heads"))
    await add(office.store, "a", "b", "c")
    await exports.export()
    await add(office.store, "d")
    await exports.export()
    assert not caplog.records
    await tamper(office.store, "DELETE FROM onward_audit WHERE number > 2")
    await exports.export()
    assert "the audit log no longer has entry 4" in caplog.text
    await add(office.store, "x", "y", "z")
    await exports.export()
    assert counted()["gone"] == 1
    heads = [line.split()[1] for line in (tmp_path / "heads").read_text().splitlines()]
    verdict = await office.app.service.audit.verify(heads)
    assert (verdict.sound, verdict.broken) == (False, 3), "the file has heads of both"


async def test_heads_go_out_at_an_interval_and_at_the_stop(
    store: Store, time: Time, clock: HandClock, tmp_path: Path
) -> None:
    office = Office(store, time, audit_heads=str(tmp_path / "heads"), audit_heads_s=60)

    def lines() -> list[str]:
        return (tmp_path / "heads").read_text().splitlines() if (tmp_path / "heads").exists() else []

    async def written(number: int) -> None:
        async def there() -> bool:
            return len(lines()) == number and bool(clock._sleepers)  # it sleeps until the next interval

        await eventually(there)

    await add(store, "a")
    async with office.app._export_heads():
        await written(1)
        await add(store, "b")
        time.move(61)
        await written(2)
        await add(store, "c")
    assert [line.split()[1].split(":")[0] for line in lines()] == ["1", "2", "3"]


async def test_a_store_that_is_away_is_logged(office: Office, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await add(office.store, "a")
    exports = exporter(office, str(tmp_path / "heads"))
    await office.store.close()
    await exports.export()
    assert (counted(), "cannot be read" in caplog.text) == ({"unread": 1}, True)


async def test_the_stop_is_bounded(office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_heads, "STOP_TIMEOUT_S", 0.05)

    class Hangs:
        name = "a place that never answers"

        async def write(self, head: Head, at: float) -> None:
            await asyncio.Event().wait()

        def close(self) -> None: ...

    await add(office.store, "a")
    async with asyncio.timeout(10), exporting(HeadExporter(office.store.audit, [Hangs()], office.time._clock, 60)):
        pass


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("heads", BadSetting),
        ("ftp://x/y", BadSetting),
        ("syslog://host:port", BadSetting),
        ("http://10.0.0.1/", BadWebhook),
    ],
)
async def test_an_impossible_setting_is_refused_at_the_start(setting: str, error: type[Exception]) -> None:
    app = Onward("sqlite://:memory:", webhook_secret=SECRET, audit_heads=setting)
    with pytest.raises(error):
        async with app.relay():
            raise AssertionError("it started")


async def test_a_worker_exports_heads(app: Onward, tmp_path: Path) -> None:
    @app.task
    async def work(ctx: Any) -> None: ...

    app.settings = dataclasses.replace(app.settings, audit_heads=str(tmp_path / "heads"), audit_heads_s=3600)
    async with app.worker():
        await app.keys.create("ada", ["read"])
    assert len((tmp_path / "heads").read_text().splitlines()) == 1
