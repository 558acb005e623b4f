"""The payload of a question or an approval, read from its beginning."""

from __future__ import annotations

from typing import Any

import pytest

from onward.core import wire
from onward.core.asks import MAX_TEXT_CHARS, ordered, read_head

RULE = {"risks": [], "tools": ["wire"], "handlers": [], "approvers": ["role:admin"], "votes": 2, "asker": False}
PAYLOADS: list[dict[str, Any]] = [
    {"what": "pay – 7 €", "risk": "high", "data": {"until": 1, "what": "no"}, "default": "deny", "until": 1763.25},
    {"what": 'a "quoted"\n\\text 🙂', "data": ["x" * 30], "rule": RULE},
    {"what": "bare", "data": None},
    {"question": "how?", "choices": ["one", "two"], "until": 17.5, "cut": True},
    {"question": "why?"},
    {"what": "new", "unknown": {"of a newer": "version"}, "risk": "low", "data": 1},
]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("older", [False, True])
def test_each_beginning_of_a_payload_says_what_it_has_and_what_is_missing(payload: dict[str, Any], older: bool) -> None:
    """Wherever it is cut. An older version wrote the fields in another order."""
    data = wire.encode(payload if older else ordered(payload))
    for size in range(len(data)):
        fields, left_out = read_head(data[:size])
        for name, value in payload.items():
            if name in left_out:
                assert name not in fields or str(value).startswith(fields[name])
            elif name != "unknown":
                assert fields.get(name, "missing") == value, (name, data[:size])
        assert fields.keys() <= payload.keys()


def test_a_small_field_is_known_before_a_large_one() -> None:
    large = {"what": "w" * 500, "risk": "high", "data": "d" * 5000, "until": 5.0, "default": "deny", "rule": RULE}
    fields, left_out = read_head(wire.encode(ordered(large))[:1000])
    assert fields == {name: value for name, value in large.items() if name != "data"}
    assert left_out == {"data"}
    fields, left_out = read_head(wire.encode(ordered(large))[:200])
    assert {"rule", "data", "what"} <= left_out
    assert fields["until"] == 5.0
    assert fields["what"] == "w" * len(fields["what"]) != ""


def test_a_text_that_is_cut_is_short() -> None:
    fields, _ = read_head(wire.encode(ordered({"question": '"\\' * 5000}))[:1000])
    assert 0 < len(fields["question"]) <= MAX_TEXT_CHARS
