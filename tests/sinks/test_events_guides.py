"""The guides webhooks.md and events.md are true."""

from __future__ import annotations

import asyncio
import re
import shlex

import pytest

from onward import Context
from onward.cli.args.parser import parse
from onward.core.event import ALIASES, KINDS
from onward.store.port.core import Store
from onward.testing import drain, memory_app
from tests.docs.test_guides import GUIDES, code_of
from tests.kit import Time
from tests.sinks.conftest import SECRET, Office
from tests.sinks.receiver import Receiver


async def test_events() -> None:
    names = code_of("events.md", "shop.py")
    app = memory_app(names["app"])
    async with app:
        await app.save_subscriptions()
        await app.submit("ship", "7")
        await app.submit("ship", "")
        await drain(app)
    assert [letter.partition(": ")[2] for letter in names["letters"]] == ["7 is on its way"]
    assert ["which order?" in alarm for alarm in names["alarms"]] == [True]


def test_every_type_is_in_the_guide_and_none_that_is_not() -> None:
    text = (GUIDES / "events.md").read_text(encoding="utf-8")
    table = "".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([a-z_.]+)`", table)) == KINDS | ALIASES.keys()


async def test_webhooks(store: Store, time: Time, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_WEBHOOK_SECRET", SECRET)
    names = code_of("webhooks.md", "orders.py")
    assert names["app"].settings.webhook_secret == SECRET
    office = Office(store, time)
    await office.complete(webhook=receiver.url())
    await office.send_all()
    (got,) = receiver.got
    check = code_of("webhooks.md", "receiver.py")["check"]
    with pytest.raises(Exception, match="timestamp"):  # by its clock, ours is far ahead
        check(SECRET, got.body, got.headers)
    text = (GUIDES / "webhooks.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    import json

    told = json.loads(shown)
    assert told.keys() == got.json.keys()
    assert told["data"].keys() == got.json["data"].keys()


async def test_leaving_the_relay_of_a_test_app_waits_for_a_delivery_under_way(receiver: Receiver) -> None:
    """The clock of the app stands still, so the relay that waited by it for the answer never came to its end."""
    app = memory_app(webhook_secret=SECRET, webhook_allow_private="127.0.0.0/8")

    @app.task
    async def work(_: Context) -> None: ...

    async with app:
        task = await app.submit(work, webhook=receiver.url())
        await drain(app)
        async with asyncio.timeout(30), app.relay():
            while not receiver.got:  # noqa: ASYNC110 -- to leave at once
                await asyncio.sleep(0)
        ((delivery,), _) = await app.deliveries()
        assert (delivery.task_id, delivery.state) == (task.id, "delivered")


def test_the_commands_are_commands() -> None:
    text = (GUIDES / "webhooks.md").read_text(encoding="utf-8")
    commands = [*re.findall(r"^\$ (onward .*)$", text, re.MULTILINE), *re.findall(r"`(onward \w+ [^`]+)`", text)]
    for command in commands:
        words = shlex.split(command)[1:]
        assert parse(words).command == words[0]
    assert len(commands) >= 3
