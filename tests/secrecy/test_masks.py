"""Masks: a value is in no written text, in no form that programs give it; all other text stays as it is."""

from __future__ import annotations

import base64
import functools
import html
import json
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from onward.core import mask, wire
from onward.core.escapes import KINDS, MAX_ROUNDS, unescaped
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
        "html, other quotes": html.escape(value).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
        "html, decimal": "".join(f"&#{ord(letter)};" for letter in value),
        "html, hex": "".join(f"&#x{ord(letter):X};" for letter in value),
        "html, not ascii": value.replace("&", "&amp;").encode("ascii", "xmlcharrefreplace").decode(),
        "encodeURI": urllib.parse.quote(value, safe=";,/?:@&=+$-_.!~*'()#"),
        "percent, all": "".join(f"%{byte:02x}" for byte in raw),
        "percent, twice": urllib.parse.quote(urllib.parse.quote(value, safe=""), safe=""),
        "json, slashes": json.dumps(value).replace("/", "\\/"),
        "json, all": '"' + "".join(f"\\u{unit:04X}" for unit in utf_16(value)),
        "json in a url": urllib.parse.quote(json.dumps({"key": value})),
        "html in json": json.dumps(html.escape(value)),
        "repr of bytes": repr(raw),
        "repr": repr(value),
        "error": str(KeyError(value)),
        "base64": base64.b64encode(raw).decode(),
        "basic": "Basic " + base64.b64encode(b"user:" + raw).decode(),
        "base64 in the middle": base64.b64encode(b"ab" + raw + b"yz").decode(),
        "base64url": base64.urlsafe_b64encode(b"x" + raw).decode(),
        "base64, lines of 64": in_lines(base64.b64encode(b"x" * 40 + raw + b"y" * 40).decode(), 64, "\n"),
        "base64, lines of 76": in_lines(base64.b64encode(b"x" * 55 + raw + b"y" * 40).decode(), 76, "\r\n"),
        "base64, indented": in_lines(base64.urlsafe_b64encode(b"x" * 41 + raw).decode().rstrip("="), 64, "\n    "),
        "base64, lines in json": json.dumps(in_lines(base64.b64encode(b"x" * 42 + raw).decode(), 64, "\n")),
        "base64 in a url": urllib.parse.quote(base64.b64encode(raw + b"?>").decode(), safe=""),
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
        "hex, colons": raw.hex(":"),
        "hex, lines": in_lines("00" * 25 + raw.hex(), 64, "\n"),
        "hex, blanks": raw.hex(" "),
        "HEX, blanks": raw.hex(" ").upper(),
        "HEX, colons": raw.hex(":").upper(),
        "hex, dashes": raw.hex("-"),
        "HEX, dashes": raw.hex("-").upper(),
        "hex, colons and lines": in_lines(raw.hex(":"), 48, "\n    "),
        "hex, groups": in_lines(raw.hex(), 4, " "),
        "octal": "".join(f"\\{byte:03o}" for byte in raw),
        "octal, short": "".join(
            f"\\{byte:o}" if not following.isdigit() else f"\\{byte:03o}"
            for byte, following in zip(raw, [*map(chr, raw[1:]), "."], strict=True)
        )
        + ".",
        "hex of bytes": "".join(f"\\x{byte:02x}" for byte in raw),
        "braces": "".join(f"\\u{{{ord(letter):x}}}" for letter in value),
        "braces, perl": "".join(f"\\x{{{ord(letter):06X}}}" for letter in value),
        "html, decimal without an end": "".join(f"&#{ord(letter)}" for letter in value) + ";",
        "html, hex without an end": "".join(f"&#x{ord(letter):x}" for letter in value) + ";",
        "json, four deep": nested(value, 4),
        "json, six deep": nested(value, 6),
        "json, five deep, in a url": urllib.parse.quote(nested(value, 5), safe=""),
        "url, five deep": functools.reduce(lambda text, _: urllib.parse.quote(text, safe=""), range(5), value),
        "html, four deep": functools.reduce(lambda text, _: html.escape(text), range(4), value),
        "json, html and url": urllib.parse.quote(html.escape(json.dumps(json.dumps(value)))),
        "base64 of json": base64.b64encode(json.dumps({"key": value}).encode()).decode(),
        "base64 of json, not ascii": base64.b64encode(json.dumps([value], ensure_ascii=False).encode()).decode(),
        "base64 of json in json": base64.b64encode(json.dumps(json.dumps(value)).encode()).decode(),
        "base64 of a url": base64.urlsafe_b64encode(b"x=" + urllib.parse.quote(value, safe="").encode()).decode(),
        "base64 of a form": base64.b64encode(urllib.parse.urlencode({"key": value}).encode()).decode(),
        "base64 of html": base64.b64encode(html.escape(value).encode()).decode(),
        "hex of json": json.dumps({"key": value}).encode().hex(),
        "hex of json, colons": json.dumps(value).encode().hex(":"),
        "base64 of json, lines, in json": nested(
            in_lines(base64.b64encode(json.dumps({"key": value}).encode()).decode(), 64, "\n"), 3
        ),
    }


def nested(text: str, depth: int) -> str:
    """JSON in a string in JSON, so deep."""
    for _ in range(depth):
        text = json.dumps({"data": text})
    return text


def in_lines(text: str, width: int, end: str) -> str:
    return end.join(text[start : start + width] for start in range(0, len(text), width))


def utf_16(text: str) -> list[int]:
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[start : start + 2]) for start in range(0, len(data), 2)]


@given(values, around, around)
@example(SECRET, "", "")
@example("12345678", "a", "b")
@example("a b&c<d>e\"f'g/h é 😀", "x=", "&y")
@settings(max_examples=10, deadline=None)
def test_every_form_of_a_value_is_masked(value: str, before: str, after: str) -> None:
    check_everything(value, before, after)


@pytest.mark.slow
@given(values, around, around)
@settings(max_examples=300, deadline=None)
def test_every_form_of_many_values_is_masked(value: str, before: str, after: str) -> None:
    check_everything(value, before, after)


def check_everything(value: str, before: str, after: str) -> None:
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
def test_text_without_a_secret_is_unchanged(value: Any) -> None:
    mask.clear()
    plain = wire.encode(value)
    mask.learn("K", "a-value-that-nobody-draws")
    assert wire.encode(value) == plain
    assert wire.fingerprint(value) == wire.fingerprint(wire.decode(plain))


def test_a_backslash_before_a_value_leaves_valid_json() -> None:
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
def test_two_names_of_one_value_are_masked_as_the_same_name(names: tuple[str, str]) -> None:
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


def test_a_value_forgotten_as_often_as_learned_is_no_longer_masked() -> None:
    mask.learn("K", "token-one")
    mask.learn("K", "token-one")
    mask.forget("K", "token-one")
    assert mask.text("token-one") == "[secret K]"
    mask.forget("K", "token-one")
    mask.forget("K", "token-one")
    assert mask.text("token-one") == "token-one"
    assert not mask.on


def test_the_latest_values_of_a_secret_stay_masked() -> None:
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


def pieces_of(text: str, sizes: list[int]) -> list[str]:
    """The text in pieces of these sizes, over and over."""
    pieces, start, number = [], 0, 0
    while start < len(text):
        size = sizes[number % len(sizes)]
        pieces.append(text[start : start + size])
        start, number = start + size, number + 1
    return pieces


streamed = st.lists(st.integers(3, 30), min_size=1, max_size=5)


@given(values, around, around, streamed)
@example(SECRET, "", " and more words that follow", [5])
@example("sk_live_1234567890", "key: ", " end", [7])
@settings(max_examples=5)
def test_a_value_that_comes_in_pieces_is_masked(value: str, before: str, after: str, sizes: list[int]) -> None:
    check_in_pieces(value, before, after, sizes)


@pytest.mark.slow
@given(values, around, around, streamed)
@settings(max_examples=100, deadline=None)
def test_many_values_that_come_in_pieces_are_masked(value: str, before: str, after: str, sizes: list[int]) -> None:
    check_in_pieces(value, before, after, sizes)


def check_in_pieces(value: str, before: str, after: str, sizes: list[int]) -> None:
    mask.clear()
    mask.learn("K", value)
    for how, form in everything_made_of(value).items():
        stream = mask.Stream()
        shown = [stream.feed(piece) for piece in pieces_of(f"{before}{form}{after}", sizes)]
        whole = mask.text(f"{before}{form}{after}")
        assert whole.startswith("".join(shown)), how


ESCAPES: dict[str, Callable[[str], str]] = {
    "json": lambda text: json.dumps({"data": text}),
    "json, not ascii": lambda text: json.dumps([text], ensure_ascii=False),
    "url": lambda text: urllib.parse.quote(text, safe=""),
    "path": urllib.parse.quote,
    "html": html.escape,
    "html, decimal": lambda text: "".join(f"&#{ord(letter)};" for letter in text),
    "octal": lambda text: "".join(f"\\{byte:03o}" for byte in text.encode()),
    "braces": lambda text: "".join(f"\\u{{{ord(letter):x}}}" for letter in text),
}
"""Escapes that programs put around anything."""

INSIDE = ("json", "json, not ascii", "url", "path", "html")
"""Escapes that are undone within base64 and hex: one of them."""

ENCODINGS: dict[str, Callable[[bytes], str]] = {
    "base64": lambda raw: base64.b64encode(raw).decode(),
    "base64 for URLs, lines": lambda raw: in_lines(base64.urlsafe_b64encode(raw).decode(), 60, "\n  "),
    "hex": bytes.hex,
    "hex, colons": lambda raw: raw.hex(":").upper(),
    "hex, blanks": lambda raw: raw.hex(" "),
}

MAX_STREAMED_CHARS = 1_000

MAX_MADE_BYTES = 20_000
"""A value with deep escapes is not made longer than this: each layer of all-decimal escapes multiplies its length."""


@st.composite
def made_of_a_value(draw: st.DrawFn, alphabet: str | None = None) -> tuple[str, str, list[str]]:
    """A value, a string that programs made of it, and how."""
    letters = (
        values if alphabet is None else st.text(alphabet, min_size=12, max_size=40).filter(lambda v: v == v.strip())
    )
    value = made = draw(letters)
    how: list[str] = []
    encoding = draw(st.sampled_from([None, *ENCODINGS]))
    if encoding is not None:
        inside = draw(st.sampled_from([None, *INSIDE]))
        made = ENCODINGS[encoding]((made if inside is None else ESCAPES[inside](made)).encode())
        how += [inside or "as it is", encoding]
    for name in draw(st.lists(st.sampled_from(list(ESCAPES)), max_size=5)):
        if len(made) * 8 < MAX_MADE_BYTES:
            made = ESCAPES[name](made)
            how.append(name)
    return value, made, how


@given(made_of_a_value(), around, around, st.lists(st.integers(1, 30), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_escapes_within_escapes_are_undone(
    made: tuple[str, str, list[str]], before: str, after: str, sizes: list[int]
) -> None:
    check_made(made, before, after, sizes)


@pytest.mark.slow
@given(made_of_a_value(), around, around, st.lists(st.integers(1, 30), min_size=1, max_size=5))
@settings(max_examples=300, deadline=None)
def test_many_escapes_within_escapes_are_undone(
    made: tuple[str, str, list[str]], before: str, after: str, sizes: list[int]
) -> None:
    check_made(made, before, after, sizes)


@pytest.mark.slow
@given(made_of_a_value("abn7%&\\\"'/<+=ö-_"), around, st.lists(st.integers(1, 30), min_size=1, max_size=5))
@settings(max_examples=300, deadline=None)
def test_values_with_the_signs_of_escapes_are_masked(
    made: tuple[str, str, list[str]], after: str, sizes: list[int]
) -> None:
    check_made(made, " ", f" {after}", sizes)


def check_made(made: tuple[str, str, list[str]], before: str, after: str, sizes: list[int]) -> None:
    value, form, how = made
    text = f"{before}{form}{after}"
    mask.clear()
    mask.learn("K", value)
    mask.learn("OTHER", "another-value-of-another-length")
    whole = mask.text(text)
    assert "[secret K]" in whole, how
    assert mask.text(whole) is whole, "none is left"
    if len(text) < MAX_STREAMED_CHARS:
        stream = mask.Stream()
        shown = "".join(stream.feed(piece) for piece in pieces_of(text, sizes))
        assert whole.startswith(shown), how


def test_text_without_a_value_is_held_back_for_a_moment_at_most() -> None:
    mask.learn("K", "sk_live_1234567890")
    mask.learn("L", "-----BEGIN KEY-----\n" + "x" * 3000)
    stream = mask.Stream()
    text = "sky and sk_live, 100% & more -----BEGIN a \\u00 line\n" * 20
    shown = "".join(stream.feed(piece) for piece in pieces_of(text, [3])) + stream.feed("!")
    assert shown == text + "!"


def test_a_large_text_is_searched_in_time_that_grows_with_its_length() -> None:
    """Counts work, not time: each level reads the text once, and there are a few levels."""
    mask.learn("K", "sk_live_1234567890")
    escapes = "%25" * 4_000 + "&amp;" * 4_000 + "\\\\" * 4_000
    assert len(list(unescaped(escapes.encode()))) <= 1 + len(KINDS) * MAX_ROUNDS
    assert mask.text(escapes) is escapes
    assert mask.text(escapes + "sk%5Flive%5F1234567890").endswith("[secret K]")
