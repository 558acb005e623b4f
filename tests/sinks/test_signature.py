"""Secrets and signatures, against the library of the standard."""

from __future__ import annotations

import base64
import datetime
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from onward.config import load
from onward.errors import BadSetting
from onward.sinks import signature

secrets = st.binary(min_size=24, max_size=64)


@given(secrets, st.dictionaries(st.text(), st.text() | st.integers()))
def test_the_library_of_the_standard_agrees(secret: bytes, value: dict[str, object]) -> None:
    body = json.dumps(value).encode()
    now = datetime.datetime.now(tz=datetime.UTC)
    stamp = int(now.timestamp())
    header = signature.sign([b"x" * 24, secret], "msg_1", stamp, body)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(stamp), "webhook-signature": header}
    assert Webhook(signature.encode(secret)).verify(body, headers) == value
    assert Webhook(signature.encode(secret)).sign("msg_1", now, body.decode()) == header.split(" ")[1]


@given(st.lists(secrets, min_size=1, max_size=3))
def test_a_setting_names_one_or_more(given_secrets: list[bytes]) -> None:
    text = ", ".join(signature.encode(secret) for secret in given_secrets)
    assert signature.parse(text) == tuple(given_secrets)
    assert len(set(signature.derive(given_secrets, "a") + signature.derive(given_secrets, "b"))) == 2 * len(
        set(given_secrets)
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "secret",
        "whsec_",
        "whsec_!!",
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
    ],
)
def test_a_wrong_secret_is_refused_without_being_shown(wrong: str) -> None:
    with pytest.raises(BadSetting, match="webhook_secret") as error:
        signature.parse(wrong)
    assert wrong[9:] == "" or wrong[9:] not in str(error.value)


def test_a_list_in_the_file_is_a_list_and_settings_do_not_show_it() -> None:
    settings = load({"webhook_secret": ["whsec_a", "whsec_b"], "webhook_allow_private": True}, {})
    assert settings.webhook_secret == "whsec_a,whsec_b"
    assert settings.webhook_allow_private == "True"
    assert "whsec" not in repr(settings)
