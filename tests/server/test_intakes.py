"""Intakes and dead letters over HTTP, with the client."""

from __future__ import annotations

import pytest

from onward import Onward
from onward.client import Client
from onward.errors import Forbidden, NotFound, UsageError
from onward.store.shared.intakes import IntakeReport
from tests.server.conftest import serving
from tests.service.letters import bury


async def test_letters_are_listed_read_redriven_and_dropped(app: Onward) -> None:
    ids = await bury(app, b'{"n": 1}', b"\xff", tenant="acme")
    (other,) = await bury(app, b"{}", intake="mail")
    report = IntakeReport("orders", "host:1", "shop/ORDERS", "ship", "acme", "waiting", "host:1 is full", 5, 2, 0.5, 9)
    await app.store.intakes.report(report)
    token = (await app.keys.create("all", ["read", "submit", "admin"])).token
    async with serving(app) as address, Client(address, key=token) as client:
        mail, orders = await client.intakes()
        assert (orders.state, orders.lag, orders.dead, orders.processes[0].process) == ("waiting", 9, 2, "host:1")
        assert (mail.name, mail.dead, mail.seen_at) == ("mail", 1, None)
        page, cursor = await client.dead_letters("orders", limit=1)
        assert ([letter.id for letter in page], cursor) == ([ids[1]], ids[1])
        letter = await client.dead_letter(ids[0])
        assert (letter.body, letter.encoding, letter.headers) == (
            '{"n": 1}',
            "text",
            {"content-type": "application/json"},
        )
        assert (await client.dead_letter(ids[1])).encoding == "base64"
        assert await client.redrive_letters(ids[0]) == 1
        assert await client.redrive_letters(all=True) == 3
        assert await client.drop_letters(other) == 1
        with pytest.raises(NotFound):
            await client.drop_letters(other)
        assert await client.drop_letters(intake="orders") == 2
        for wrong in ({}, {"intake": "orders", "all": True}):
            with pytest.raises(UsageError):
                await client.drop_letters(**wrong)
    entries = [(entry.action, entry.tenant, entry.name) for entry in await app.audit() if "letters" in entry.action]
    assert entries == [
        ("redrive_letters", "acme", "all"),
        ("redrive_letters", None, "all"),
        ("redrive_letters", "acme", "all"),
        ("drop_letters", None, "all"),
        ("drop_letters", "acme", "all"),
    ]


async def test_a_tenant_sees_its_intakes_without_the_machines_of_the_operator(app: Onward) -> None:
    report = IntakeReport("orders", "host:1", "shop/ORDERS", "ship", "acme", "away", "host:1 is full", 5, 0, 0.5, 9)
    await app.store.intakes.report(report)
    await app.store.intakes.report(report._replace(name="mail", tenant="globex"))
    token = (await app.keys.create("acme", ["read"], tenant="acme")).token
    async with serving(app) as address, Client(address, key=token) as client:
        (intake,) = await client.intakes()
        assert (intake.name, intake.state, intake.detail, intake.processes) == ("orders", "away", "", ())
        with pytest.raises(Forbidden):
            await client.redrive_letters(all=True)
        with pytest.raises(Forbidden):
            await client.drop_letters(all=True)
