"""Intakes as operators see them, and dead letters: listed, shown, tried again, deleted, pruned."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.core.caller import Caller
from onward.errors import BadSetting, NotFound, UsageError
from onward.service import intakes as service
from onward.store.shared import intakes as store
from onward.store.shared.intakes import IntakeReport
from tests.kit import sql
from tests.service.letters import bury

ADA = Caller(key="k1", name="ada")


async def report(app: Onward, process: str, **values: Any) -> None:
    given = IntakeReport("orders", process, "shop/ORDERS", "ship", None, "running", "", 10, 1, 2.5, 7)
    await app.store.intakes.report(given._replace(**values))


async def seen(app: Onward, process: str, ago: float) -> None:
    await sql(app.store, f"UPDATE onward_intakes SET seen_at = seen_at - {ago} WHERE process = '{process}'")


async def left(app: Onward, **filters: Any) -> list[str]:
    page, _ = await app.dead_letters.list(limit=1000, **filters)
    return [letter.id for letter in page]


# ── intakes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_intake_adds_up_its_processes_and_a_silent_one_shows(app: Onward) -> None:
    await report(app, "a:1")
    await report(app, "b:2", state="away", detail="broker shop does not answer", rate=1.0, lag=9)
    await report(app, "c:3", rate=100.0, lag=1000)
    await seen(app, "c:3", service.SILENT_S + 5)
    await bury(app, b"{}", b"{}")
    (intake,) = await app.service.intakes.list()
    assert (intake.name, intake.source, intake.target, intake.state, intake.detail) == (
        *("orders", "shop/ORDERS", "ship"),
        *("running", ""),
    )
    assert (intake.taken, intake.rate, intake.lag, intake.dead, intake.redriven) == (30, 3.5, 9, 2, 0)
    assert {process.process: process.state for process in intake.processes} == {
        "a:1": "running",
        "b:2": "away",
        "c:3": "silent",
    }
    assert (await app.service.intakes.checks())[0].fine is True


async def test_the_doctor_names_intakes_that_no_process_receives(app: Onward) -> None:
    await report(app, "a:1")
    await seen(app, "a:1", 60)
    await report(app, "b:1", name="mail", state="stopped")
    await report(app, "c:1", name="bills", state="waiting", detail="the queue is full")
    checks = {check.name: check for check in await app.service.health.checks()}
    assert checks["intake orders"].fine is False
    assert "1 process died or cannot report" in checks["intake orders"].detail
    assert checks["intake mail"].fine is None
    assert (checks["intake bills"].fine, checks["intake bills"].detail[:26]) == (None, "waiting: the queue is full")


async def test_old_reports_go_but_the_last_one_of_an_intake_stays_for_a_week(app: Onward) -> None:
    for process in ("a:1", "a:2"):
        await report(app, process)
        await seen(app, process, store.FORGET_S * 2)
    await report(app, "b:1", name="mail", state="stopped")
    await seen(app, "b:1", store.FORGET_S * 2)
    await report(app, "c:1", name="bills")
    await seen(app, "c:1", store.FORGET_LAST_S * 2)
    await report(app, "d:1", name="other")
    assert {row.process for row in await app.store.intakes.reports(await app.store.intakes.names())} == {"a:2", "d:1"}
    await report(app, "a:3")
    assert {row.process for row in await app.store.intakes.reports(await app.store.intakes.names())} == {"a:3", "d:1"}


async def test_an_intake_of_which_only_letters_are_left_is_listed(app: Onward) -> None:
    await bury(app, b"{}", intake="gone")
    (intake,) = await app.service.intakes.list()
    assert (intake.name, intake.state, intake.dead, intake.seen_at, intake.processes) == ("gone", "silent", 1, None, ())
    assert await app.service.intakes.checks() == [], "its code may be gone for good"


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_letters_come_in_pages_the_newest_first(app: Onward) -> None:
    ids = await bury(app, *[b"{}"] * 5)
    others = await bury(app, b"{}", intake="mail")
    page, cursor = await app.dead_letters.list("orders", limit=2)
    assert [letter.id for letter in page] == [ids[4], ids[3]]
    assert page[0].reason == "no task takes b'{}'"
    rest, end = await app.dead_letters.list("orders", cursor=cursor)
    assert ([letter.id for letter in rest], end) == ([ids[2], ids[1], ids[0]], None)
    assert await left(app) == [*others, *ids[::-1]]
    with pytest.raises(BadSetting, match="between 1 and 1000"):
        await app.dead_letters.list(limit=0)
    with pytest.raises(UsageError, match="no cursor"):
        await app.dead_letters.list(cursor="'; --")


async def test_a_letter_shows_text_as_text_and_bytes_in_base_64(app: Onward) -> None:
    text, data, cut = await bury(app, '{"ü": 1}'.encode(), b"\xff\x00", "ab\u20ac".encode() * 2)
    shown = await app.dead_letters.get(text)
    assert (shown.body, shown.encoding, shown.left_out) == ('{"ü": 1}', "text", ())
    assert shown.headers == {"content-type": "application/json"}
    shown = await app.dead_letters.get(data)
    assert (shown.body, shown.encoding) == (base64.b64encode(b"\xff\x00").decode(), "base64")
    shown = await app.dead_letters.get(cut, most=4)
    assert (shown.body, shown.encoding, shown.left_out, shown.size) == ("ab", "text", ("body",), 10)
    with pytest.raises(NotFound, match="onward dead"):
        await app.dead_letters.get("06g0000000000000000000000a")
    with pytest.raises(NotFound):
        await app.dead_letters.get("../x\0")


async def test_large_headers_and_a_body_that_was_not_kept_whole_are_left_out(app: Onward) -> None:
    large = {"x": "y" * (service.MAX_HEADER_BYTES + 1)}
    (letter_id,) = await bury(app, b"{}", headers=large, size=1 << 30)
    shown = await app.dead_letters.get(letter_id)
    assert (shown.headers, shown.body, shown.left_out) == ({}, "{}", ("headers", "body"))


async def test_a_redrive_asks_once_for_each_letter(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_CHANGED", 2)
    monkeypatch.setattr(service, "MAX_CHANGED", 2)
    ids = await bury(app, *[b"{}"] * 5)
    await bury(app, b"{}", intake="mail")
    assert await app.dead_letters.redrive(intake="orders", by=ADA) == 5
    (orders,) = [intake for intake in await app.service.intakes.list() if intake.name == "orders"]
    assert (orders.dead, orders.redriven) == (5, 5)
    taken = await app.store.intakes.take("orders", 10, 60.0)
    assert [letter.id for letter in taken] == ids
    assert await app.store.intakes.take("orders", 10, 60.0) == [], "another process leaves them alone meanwhile"
    await app.store.intakes.still_dead(ids[0], "still not")
    shown = await app.dead_letters.get(ids[0])
    assert (shown.attempts, shown.reason, shown.redrive_at) == (2, "still not", None)
    entries = await app.audit()
    assert [(entry.action, entry.subject, entry.key, entry.data) for entry in entries] == [
        ("redrive_letters", "orders", "k1", b'{"letters":2}'),
        ("redrive_letters", "orders", "k1", b'{"letters":2}'),
        ("redrive_letters", "orders", "k1", b'{"letters":1}'),
    ]


async def test_a_drop_deletes_one_those_of_an_intake_or_all(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_CHANGED", 2)
    monkeypatch.setattr(service, "MAX_CHANGED", 2)
    ids = await bury(app, *[b"{}"] * 4)
    other = await bury(app, b"{}", intake="mail")
    assert await app.dead_letters.drop(ids[1]) == 1
    with pytest.raises(NotFound):
        await app.dead_letters.drop(ids[1])
    assert await app.dead_letters.drop(intake="orders") == 3
    assert await left(app) == other
    assert await app.dead_letters.drop(intake="orders") == 0
    assert await app.dead_letters.drop(all=True) == 1
    for wrong in ({}, {"intake": "orders", "all": True}):
        with pytest.raises(UsageError, match="name one dead letter"):
            await app.dead_letters.drop(**wrong)


async def test_a_tenant_sees_and_changes_only_its_own(app: Onward) -> None:
    own = await bury(app, b"{}", tenant="acme")
    others = await bury(app, b"{}", b"{}", tenant="globex")
    plain = await bury(app, b"{}")
    letters = app.dead_letters
    assert await left(app, whose="acme") == own
    assert await left(app, whose="") == plain
    with pytest.raises(NotFound):
        await letters.get(others[0], whose="acme")
    for change in (letters.redrive, letters.drop):
        with pytest.raises(NotFound):
            await change(others[0], whose="acme")
    assert await letters.drop(intake="orders", whose="acme") == 1
    assert await letters.redrive(all=True) == 3
    (intake,) = await app.service.intakes.list("globex")
    assert (intake.dead, intake.redriven) == (2, 2)
    entries = [(entry.action, entry.tenant) for entry in await app.audit()]
    assert entries == [("drop_letters", "acme"), ("redrive_letters", None), ("redrive_letters", "globex")]


async def test_letters_are_kept_for_thirty_days(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_CHANGED", 2)
    old, day = [f"06a000000000000000000000{number:02}" for number in range(5)], 86400.0
    await bury(app, *[b"{}"] * 4)
    fresh = await left(app)
    for letter_id in old:
        await bury(app, b"{}", id=letter_id)
    await sql(app.store, f"UPDATE onward_dead_letters SET at = at - {31 * day} WHERE id < '06b'")
    await app.store.intakes.redrive(service.AuditEvent("redrive", "x"), old[0], old[0])
    (warning,) = await app.service.intakes.checks()
    assert (warning.fine, warning.name) == (None, "dead letters")
    assert "5 dead letters older than a day (5 of orders)" in warning.detail
    assert await app.dead_letters.prune() == 4
    assert await left(app) == [*fresh, old[0]], "one was asked for only now"
    assert await app.dead_letters.prune() == 0


async def test_the_code_of_the_guide_runs(app: Onward) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "dead-letters.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/guides/dead-letters.md", "exec"), names)
    await bury(app, b"{}", b"{}")
    assert await names["retry_orders"](app) == 2
