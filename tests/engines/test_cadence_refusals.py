"""What Cadence cannot do is refused with a sentence: when the app is made, at submit, or when a worker starts. No server is needed."""

from __future__ import annotations

from typing import Any

import pytest

from onward import Onward
from onward.errors import BadSetting, UsageError

pytest.importorskip("cadence", reason="the client of Cadence is not installed: pip install 'onward[cadence]'")

URL = "cadence://localhost:7833/shop?tasklist=refusals"


@pytest.fixture(autouse=True)
def _plain(plain_payloads: None) -> None:
    """Encryption is refused itself."""


def make_app(**settings: Any) -> Onward:
    app = Onward(engine=URL, **settings)

    @app.task
    async def work(ctx: Any) -> None: ...

    return app


@pytest.mark.parametrize(
    "url", ["cadence://", "cadence:///shop", "cadence://u:p@localhost", f"{URL}&tls=1", "cadence://localhost?queue=x"]
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(BadSetting, match="cadence://HOST:PORT/DOMAIN"):
        Onward(engine=url)


def test_an_address_has_defaults() -> None:
    assert Onward(engine="cadence://example.com").store.where == "Cadence example.com:7833/default, task list onward"
    assert Onward(engine=URL).store.where == "Cadence localhost:7833/shop, task list refusals"


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match="tasks on Cadence are read by queries; leave db out"):
        make_app(db="sqlite:///other.db")
    with pytest.raises(UsageError, match="payloads on Cadence are not encrypted; leave encryption_keys out"):
        make_app(encryption_keys="k1=AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")


async def test_submits_that_need_an_onward_database() -> None:
    app = make_app(webhook_secret="whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNk", webhook_allow_private="true")
    async with app:
        for options, sentence in (
            ({"connection": object()}, r"submit\(connection=\) is not there on Cadence; submit after the commit"),
            ({"webhook": "http://127.0.0.1/x"}, r"submit\(webhook=\) is not there on Cadence"),
            ({"priority": 5}, "a priority is not there on Cadence; submit the task without one"),
        ):
            with pytest.raises(UsageError, match=sentence):
                await app.submit("work", **options)
        with pytest.raises(UsageError, match="pause is not there on Cadence"):
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

    with pytest.raises(UsageError, match=f"this app has {what}, which are not there on Cadence"):
        async with app.worker():
            raise AssertionError
