"""What Temporal cannot do is refused with a sentence: when the app is made, at submit, or when a worker starts. No server is needed."""

from __future__ import annotations

from typing import Any

import pytest

from onward import Onward
from onward.core.ids import key_id
from onward.errors import BadSetting, UsageError

URL = "temporal://localhost:7233/default?queue=refusals"


@pytest.fixture(autouse=True)
def _plain(plain_payloads: None) -> None:
    """Encryption is refused itself."""


def make_app(**settings: Any) -> Onward:
    app = Onward(engine=URL, **settings)

    @app.task
    async def work(ctx: Any) -> None: ...

    return app


@pytest.mark.parametrize(
    "url", ["temporal://", "temporal:///default", "conductor://localhost", "temporal://u:p@localhost", f"{URL}&tls=1"]
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(BadSetting, match="temporal://HOST:PORT/NAMESPACE"):
        Onward(engine=url)


def test_an_address_has_defaults() -> None:
    engine = Onward(engine="temporal://example.com")._temporal
    assert engine is not None
    assert (engine.address.target, engine.address.namespace, engine.address.queue) == (
        "example.com:7233",
        "default",
        "onward",
    )

    assert Onward(engine=URL).store.where == "Temporal localhost:7233/default, task queue refusals"


def test_an_empty_database_needs_an_engine() -> None:
    assert make_app(db="").settings.db == ""
    with pytest.raises(BadSetting, match="sqlite:///FILE"):
        Onward("")


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match="payload codec of its SDK"):
        make_app(encryption_keys="k1=AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")


async def test_submits_that_need_an_onward_database() -> None:
    app = make_app(webhook_secret="whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNk", webhook_allow_private="true")
    async with app:
        for options, sentence in (
            ({"connection": object()}, r"submit\(connection=\) is not there on Temporal; submit after the commit"),
            ({"webhook": "http://127.0.0.1/x"}, r"submit\(webhook=\) is not there on Temporal"),
            ({"priority": 5}, "a priority is not there on Temporal; submit the task without one"),
        ):
            with pytest.raises(UsageError, match=sentence):
                await app.submit("work", **options)
        with pytest.raises(UsageError, match="pause is not there on Temporal"):
            await app.service._engine.pause("x")


@pytest.mark.parametrize("what", ["schedules", "limits", "event functions"])
async def test_a_worker_of_an_app_with_other_needs_does_not_start(what: str) -> None:
    app = make_app()
    if what == "schedules":
        app.schedule("nightly", "work", every="1h")
    elif what == "limits":
        app.limit_queue("default", concurrency=3)
    else:

        @app.on("task.completed")
        async def listen(event: Any) -> None: ...

    with pytest.raises(UsageError, match=f"this app has {what}, which are not there on Temporal"):
        async with app.worker():
            raise AssertionError


def test_a_key_gives_the_same_id_everywhere() -> None:
    """The ids of tasks with a key are part of the contract: a program with another version has to find the same task."""
    assert key_id("order-7") == "6zhkw049zc68vs4bfgxkc871e5"
