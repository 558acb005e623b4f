"""A journal as a story, and values as text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onward.cli.text import age, count, iso, machine_readable, readable, safe, short, span
from onward.cli.timeline import Mark, Story
from onward.core import record as r


def told(*entries: tuple[str, str, dict[str, Any]]) -> list[str]:
    story = Story()
    lines = []
    for seq, (kind, key, data) in enumerate(entries, 1):
        record = r.Record(seq, 0, kind, key, json.dumps(data).encode(), 1000.0 + seq)
        lines += [f"{line.mark}: {line.text} {line.detail}".strip() for line in story.tell(record)]
    return lines


def test_a_shift_that_broke_off_is_told():
    assert told(
        (r.SUBMITTED, "", {}),
        (r.SHIFT, "", {"worker": "w" * 26}),
        (r.STEP_STARTED, "pay", {}),
        (r.SHIFT, "", {"worker": "v" * 26}),
        (r.STEP_DONE, "pay", {"ms": 1500, "result": 7}),
        (r.SHIFT, "", {"worker": "u" * 26}),
        (r.COMPLETED, "", {"result": None}),
    ) == [
        "note: submitted",
        "begin: shift 1 worker wwwwwwww",
        "crash: shift 1 broke off in step pay (worker killed or lease lost)",
        "begin: shift 2 worker vvvvvvvv",
        "done: pay 7",
        "crash: shift 2 broke off (worker killed or lease lost)",
        "begin: shift 3 worker uuuuuuuu",
        "done: completed after 6.00 s",
    ]


@pytest.mark.parametrize("last", [r.HANDED_BACK, r.RETRY, r.PARKED, r.QUARANTINED, r.FAILED, r.CANCELLED])
def test_a_shift_that_ended_in_order_is_no_crash(last):
    assert not [line for line in told((r.SHIFT, "", {}), (last, "", {}), (r.SHIFT, "", {})) if line.startswith("crash")]


def test_retries_sleeps_and_ends():
    error = {"type": "OSError", "message": "away", "attempts": 3}
    assert told(
        (r.STEP_RETRY, "call", {"error": error, "attempt": 1, "due_at": 1003.0}),
        (r.STEP_DONE, "call", {"ms": 10, "result": None, "attempts": 2}),
        (r.STEP_FAILED, "other", {"error": error}),
        (r.HANDED_BACK, "", {"reason": "asleep"}),
        (r.HANDED_BACK, "", {"reason": "handed back"}),
        (r.RETRY, "", {"error": error, "attempt": 1, "due_at": 1066.0}),
        (r.PROGRESS, "", {"message": "half", "step": 1, "total": 2}),
        (r.PARKED, "", {"reason": "code changed"}),
        (r.RESUMED, "", {}),
        ("of.the.future", "key", {}),
        (r.FAILED, "", {"error": error}),
    ) == [
        "again: call, attempt 1 failed OSError: away; again in 2.00 s",
        "done: call (attempt 2)",
        "failed: other failed after 3 attempts OSError: away",
        "note: shift 0 ended handed back",
        "again: attempt 1 of the task failed OSError: away; again in 1 m 00 s",
        "progress: 1/2 half",
        "person: parked code changed",
        "begin: resumed",
        "note: of.the.future key",
        "failed: failed OSError: away",
    ]


def test_records_that_make_no_sense_do_no_harm():
    story = Story()
    for kind in [value for name, value in vars(r).items() if name.isupper() and isinstance(value, str)]:
        for data in (b"null", b"[1]", b'{"error": 3, "ms": "x", "until": "y", "for": null, "step": []}', b"\x01zz"):
            assert all(line.mark in Mark for line in story.tell(r.Record(1, 0, kind, "\x1b", data, 1.0)))


def test_text():
    assert safe("a\nb\x1b[0m\u202e\ud800ü") == "a\\nb\\x1b[0m\\u202e\\ud800ü"
    assert short("x" * 70, 10) == "xxxxxxxxx…"
    assert readable({"ü": "\x1b\u202e\x7f\n"}) == '{"ü": "\\u001b\\u202e\\u007f\\n"}'
    assert json.loads(readable({"ü": "\x1b\u202e\x7f\n\ud800"})) == {"ü": "\x1b\u202e\x7f\n\ud800"}
    assert machine_readable("ü\x7f").isascii()
    assert [span(s) for s in (0, 0.123, 9.999, 59.4, 59.9, 61, 3661, 90000)] == [
        "0.00 s", "0.12 s", "10 s", "59 s", "1 m 00 s", "1 m 01 s", "1 h 01 m", "1 d 1 h",
    ]  # fmt: skip
    assert [age(s) for s in (-1, 5, 65, 3700, 90000)] == ["0 s", "5 s", "1 m", "1 h", "1 d"]
    assert (iso(0.5), iso(float("inf")), iso(None)) == ("1970-01-01T00:00:00.500Z", None, None)
    assert (count(1, "task"), count(2000, "task")) == ("1 task", "2,000 tasks")
