"""Masks: a value is not found in what is written, whatever a program made of it; everything else stays as it is."""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.parse
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from onward.core import mask, wire
from onward.errors import InvalidInput

SECRET = "pa\"ss\\wörd/+&=\n{x}'%7"
values = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=8, max_size=40).filter(
    lambda text: len(text.strip()) >= 8 and "[secret K]" not in text and text.strip() not in "[secret K]"
)
around = st.text(max_size=12)


def everything_made_of(value: str) -> dict[str, str]:
    """A value as programs write it."""
    raw = value.encode()
    return {
        "as it is": value,
        "json": json.dumps(value),
        "json in json": json.dumps(json.dumps({"key": value})),
        "json, not ascii": json.dumps(value, ensure_ascii=False),
        "url": urllib.parse.quote(value, safe=""),
        "path": urllib.parse.quote(value),
        "form": urllib.parse.urlencode({"key": value}),
        "encodeURIComponent": urllib.parse.quote(value, safe="!~*'()"),
        "lower url": re.sub("%..", lambda match: match[0].lower(), urllib.parse.quote(value, safe="")),
        "html": html.escape(value),
        "repr": repr(value),
        "error": str(KeyError(value)),
        "base64": base64.b64encode(raw).decode(),
        "basic": "Basic " + base64.b64encode(b"user:" + raw).decode(),
        "base64 in the middle": base64.b64encode(b"ab" + raw + b"yz").decode(),
        "base64url": base64.urlsafe_b64encode(b"x" + raw).decode(),
        "hex": raw.hex(),
    }


@given(values, around, around)
@example(SECRET, "", "")
@example("12345678", "a", "b")
def test_whatever_a_program_makes_of_a_value_is_masked(value: str, before: str, after: str) -> None:
    mask.clear()
    mask.learn("K", value)
    for how, form in everything_made_of(value).items():
        data = wire.encode({"before": [before, f"{before}{form}{after}"], f"{form}!": 1})
        decoded = json.loads(data)
        assert mask.marker("K") in data.decode(), how
        assert value not in str(decoded["before"][1]).replace("[secret K]", ""), how
        assert decoded["before"][0] == before or value in before
        assert "[secret K]" in mask.text(f"{before}{form}{after}"), how
        assert b"[secret K]" in mask.data(f"{before}{form}{after}".encode()), how


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_what_holds_no_secret_is_written_as_ever(value: Any) -> None:
    mask.clear()
    plain = wire.encode(value)
    mask.learn("K", "a-value-that-nobody-draws")
    assert wire.encode(value) == plain
    assert wire.fingerprint(value) == wire.fingerprint(wire.decode(plain))


def test_a_backslash_before_a_value_leaves_json_json() -> None:
    mask.learn("K", "nabcdefgh")  # \n and this would meet in the bytes
    decoded = wire.decode(wire.encode({"a": "line\nabcdefgh", "b": "\\nabcdefgh", "c": "nabcdefgh"}))
    assert decoded == {"a": "line\nabcdefgh", "b": "\\[secret K]", "c": "[secret K]"}


def test_numbers_and_lines_and_the_longer_first() -> None:
    mask.learn("PIN", "1234567890")
    mask.learn("PEM", "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAAAABBBBCCCCDDDDEEEE\n-----END KEY-----\n")
    mask.learn("LONG", "12345678901234")
    decoded = wire.decode(
        wire.encode({"n": 1234567890, "m": 91234567890, "line": "> MIIEvQIBADANBgkqhkiG9w0B", "x": "12345678901234"})
    )
    assert decoded == {"n": "[secret PIN]", "m": 91234567890, "line": "> [secret PEM]", "x": "[secret LONG]"}
    assert mask.text("-----END KEY-----") == "-----END KEY-----"


@pytest.mark.parametrize("names", [("A", "B"), ("B", "A")])
def test_of_two_names_for_one_value_it_is_always_the_same(names: tuple[str, str]) -> None:
    for name in names:
        mask.learn(name, "sk_live_12345")
    assert mask.text("sk_live_12345") == "[secret A]"
    assert mask.name_of("sk_live_12345") == "A"


def test_a_wide_text_in_a_file_is_masked() -> None:
    mask.learn("K", "sk_live_12345")
    for codec in ("utf-8", "utf-16-le", "utf-16-be"):
        data = mask.data("key: sk_live_12345".encode(codec))
        assert "sk_live".encode(codec) not in data
    assert mask.data(b"\0\1\2nothing") == b"\0\1\2nothing"


def test_what_is_forgotten_as_often_as_it_was_learned_is_a_word_again() -> None:
    mask.learn("K", "token-one")
    mask.learn("K", "token-one")
    mask.forget("K", "token-one")
    assert mask.text("token-one") == "[secret K]"
    mask.forget("K", "token-one")
    mask.forget("K", "token-one")
    assert mask.text("token-one") == "token-one"
    assert not mask.on


def test_of_values_that_change_the_last_are_remembered() -> None:
    for number in range(mask.RECENT + 1):
        mask.learn("K", f"value-{number:04}", mask.RECENT)
    assert mask.text("value-0000") == "value-0000"
    assert mask.text("value-0001") == "[secret K]"
    with pytest.raises(ValueError, match="too short"):
        mask.learn("K", "short")


class Login(BaseModel):
    user: str
    password: SecretStr
    others: dict[int, list[SecretStr]] = {}


def test_a_secretstr_is_written_as_a_name_or_not_at_all() -> None:
    mask.learn("K", "sk_live_12345")
    known = SecretStr("sk_live_12345")
    assert wire.decode(wire.encode({"a": known})) == {"a": {"$secret": "K"}}
    decoded = wire.decode(wire.encode(Login(user="u", password=known, others={1: [known]})))
    assert decoded == {"user": "u", "password": {"$secret": "K"}, "others": {"1": [{"$secret": "K"}]}}
    for stranger in (SecretStr("another one"), Login(user="u", password=SecretStr("another one"))):
        with pytest.raises(InvalidInput, match=r"never written.*app\.secret"):
            wire.encode({"a": stranger})


def test_a_message_is_masked_before_it_is_cut() -> None:
    mask.learn("K", "sk_live_12345")
    error = wire.error_value(ValueError("x" * 9_995 + "sk_live_12345"))
    assert "sk_l" not in error["message"]
