"""Journals as lines, and values as strings."""

from __future__ import annotations

import datetime
import json
import time
from typing import Any

import pytest

from onward.cli.output.text import age, clock, count, local, machine_readable, readable, safe, short, span
from onward.cli.output.timeline import LineRenderer, Mark
from onward.core import record as r
from onward.core.journal.waterfall import Waterfall
from onward.service.serialize import iso


def rendered(*entries: tuple[str, str, dict[str, Any]]) -> list[str]:
    renderer = LineRenderer()
    lines = []
    for seq, (kind, key, data) in enumerate(entries, 1):
        record = r.Record(seq, 0, kind, key, json.dumps(data).encode(), 1000.0 + seq)
        lines += [f"{line.mark}: {line.text} {line.detail}".strip() for line in renderer.render(record)]
    return lines


def test_an_interrupted_shift_is_shown():
    assert rendered(
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
    assert not [
        line for line in rendered((r.SHIFT, "", {}), (last, "", {}), (r.SHIFT, "", {})) if line.startswith("crash")
    ]


def test_a_resume_in_an_open_shift_shows_the_crash_before_it():
    """A worker dies, a person pauses the task and resumes it: the journal has no end of the shift. Lines and bars agree on it."""
    entries: list[tuple[str, str, dict[str, Any]]] = [
        (r.SUBMITTED, "", {}),
        (r.SHIFT, "", {"worker": "w" * 26}),
        (r.STEP_STARTED, "pay", {}),
        (r.RESUMED, "", {}),
        (r.SHIFT, "", {"worker": "v" * 26}),
        (r.STEP_DONE, "pay", {"ms": 500, "result": 7}),
        (r.COMPLETED, "", {"result": None}),
    ]
    assert rendered(*entries) == [
        "note: submitted",
        "begin: shift 1 worker wwwwwwww",
        "crash: shift 1 broke off in step pay (worker killed or lease lost)",
        "begin: resumed",
        "begin: shift 2 worker vvvvvvvv",
        "done: pay 7",
        "done: completed after 6.00 s",
    ]
    fall = Waterfall()
    for seq, (kind, key, data) in enumerate(entries, 1):
        fall.read(r.Record(seq, 0, kind, key, json.dumps(data).encode(), 1000.0 + seq))
    assert [(mark.kind, mark.seq) for mark in fall.marks] == [("crash", 4), ("resume", 4), ("completed", 7)]
    assert [(bar.kind, bar.start, bar.end, bar.state) for bar in fall.bars] == [
        ("queue", 1001.0, 1002.0, "ok"),
        ("shift", 1002.0, 1003.0, "killed"),
        ("step", 1003.0, 1003.0, "killed"),
        ("queue", 1004.0, 1005.0, "ok"),
        ("shift", 1005.0, 1007.0, "ok"),
        ("step", 1005.5, 1006.0, "ok"),
    ]


def test_retries_sleeps_and_ends():
    error = {"type": "OSError", "message": "away", "attempts": 3}
    assert rendered(
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


def test_malformed_records_are_shown():
    renderer = LineRenderer()
    for kind in [value for name, value in vars(r).items() if name.isupper() and isinstance(value, str)]:
        for data in (b"null", b"[1]", b'{"error": 3, "ms": "x", "until": "y", "for": null, "step": []}', b"\x01zz"):
            assert all(line.mark in Mark for line in renderer.render(r.Record(1, 0, kind, "\x1b", data, 1.0)))


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


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system cannot change its time zone")
@pytest.mark.parametrize(
    ("zone", "day", "hour"),
    [("UTC", "2027-01-15 08:00:00Z", "08:00:00Z"), ("CET-1", "2027-01-15 09:00:00+01:00", "09:00:00+01:00")],
)
def test_times_have_their_zone(zone: str, day: str, hour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        shown = local(1_800_000_000.5), clock(1_800_000_000.5)
    time.tzset()
    assert shown == (day, hour)
    assert datetime.datetime.fromisoformat(day).timestamp() == 1_800_000_000, "as --since takes it"


# ── the programming model ────────────────────────────────────────────────────────────────────────────────────────────


def test_waits_messages_and_their_ends():
    assert rendered(
        (r.SIGNAL, "signal go", {"signal": "go"}),
        (r.HANDED_BACK, "", {"reason": "signal"}),
        (r.MESSAGE, "", {"n": 1, "kind": "signal", "name": "go", "ref": None, "value": {"to": "eu"}}),
        (r.WAITED, "signal go", {"n": 1}),
        (r.QUESTION, "question", {"question": "Where?", "choices": ["eu", "us"]}),
        (r.MESSAGE, "", {"n": 2, "kind": "answer", "name": "", "ref": 5, "value": "eu"}),
        (r.WAITED, "question", {"n": 2}),
        (r.APPROVAL, "approval", {"what": "Ship?", "risk": "external_action"}),
        (r.MESSAGE, "", {"n": 3, "kind": "decision", "ref": 8, "value": {"decision": "deny", "reason": "old", "by": "me"}}),
        (r.WAITED, "approval", {"n": 3}),
        (r.APPROVAL, "approval#2", {"what": "Again?"}),
        (r.MESSAGE, "", {"n": 4, "kind": "expired", "name": "", "ref": 11, "value": None}),
        (r.WAITED, "approval#2", {"expired": True}),
        (r.CHILD, "child bake#2", {"child": "c" * 26}),
        (r.MESSAGE, "", {"n": 5, "kind": "child", "name": "c" * 26, "value": {"state": "failed", "error": {"type": "E", "message": "burnt"}}}),
        (r.WAITED, "child bake#2", {"n": 5}),
    ) == [
        "asleep: waits for signal go",
        'note: received signal go {"to": "eu"}',
        "done: signal go came",
        "person: asks: Where? (eu, us)",
        'note: received an answer "eu"',
        "done: answered",
        "person: asks for approval: Ship? external_action",
        "note: denied by me old",
        "done: decided",
        "person: asks for approval: Again?",
        "note: the time for an answer is up",
        "again: not decided in time",
        f"asleep: waits for child bake {'c' * 26}",
        f"note: child {'c' * 26} failed E: burnt",
        "done: child bake has ended",
    ]  # fmt: skip


def test_effects_in_doubt():
    assert rendered(
        (r.SHIFT, "", {}),
        (r.ANNOUNCED, "pay", {}),
        (r.SHIFT, "", {}),
        (r.DOUBTED, "", {"step": "pay", "reason": "the worker died"}),
        (r.SHIFT, "", {}),
        (r.MESSAGE, "", {"n": 1, "kind": "resolve", "name": "not_happened", "ref": 2, "value": None}),
    ) == [
        "begin: shift 1",
        "crash: shift 1 broke off in step pay (worker killed or lease lost)",
        "begin: shift 2",
        "person: in doubt: did pay happen? the worker died",
        "begin: shift 3",
        "note: a person says of pay: not_happened",
    ]


def test_sagas_and_branches_stand_further_in():
    error = {"type": "Fatal", "message": "no visa"}
    assert rendered(
        (r.SAGA, "trip", {}),
        (r.STEP_DONE, "[trip]flight", {"ms": 0, "result": None}),
        (r.STEP_DONE, "[trip/gather.1]car", {"ms": 0, "result": None}),
        (r.SLEEP, "[trip/gather.0]sleep", {"for": 5}),
        (r.SLEPT, "[trip/gather.0]sleep", {}),
        (r.STEP_DONE, "[trip/gather.0/gather#2.3]map", {"ms": 0, "result": None}),
        (r.UNDOING, "trip", {"error": error}),
        (r.STEP_DONE, "[trip/undo]flight", {"ms": 0, "result": None}),
        (r.UNDONE, "trip", {"undone": ["[trip]flight"], "not_undone": ["[trip/gather.1]car"]}),
        (r.RETRY, "", {"error": error, "attempt": 1}),
        (r.SAGA, "trip", {}),
        (r.STEP_FAILED, "[trip@2]flight", {"error": error}),
        (r.SAGA_DONE, "trip", {}),
        (r.VERSION, "version two-factor", {}),
        (r.UNDONE, "other", {}),
    ) == [
        "note: trip begun",
        "done:   flight",
        "done:     [1] car",
        "asleep:     asleep for 5.00 s",
        "asleep:     awake again",
        "done:       [0.3] map",
        "failed: trip given up Fatal: no visa",
        "done:     undo flight",
        "failed: trip not wholly undone undone: flight; NOT undone: [1] car",
        "again: attempt 1 of the task failed Fatal: no visa; again",
        "note: trip begun, round 2",
        "failed:   flight failed Fatal: no visa",
        "note: trip completed",
        "note: version two-factor marked",
        "again: other undone there was nothing to undo",
    ]


def test_a_cancel_that_undoes_first_is_no_crash():
    assert rendered(
        (r.SHIFT, "", {}),
        (r.SAGA, "saga", {}),
        (r.CANCEL, "", {}),
        (r.SHIFT, "", {}),
        (r.UNDOING, "saga", {"error": {"type": "Cancelled", "message": "cancelled"}}),
        (r.UNDONE, "saga", {"undone": [], "not_undone": []}),
        (r.CANCELLED, "", {"undone": ["[saga]a"], "not_undone": ["[saga]b"]}),
    ) == [
        "begin: shift 1",
        "note: saga begun",
        "note: cancel requested what it did is undone first",
        "begin: shift 2",
        "failed: saga given up Cancelled: cancelled",
        "again: saga undone there was nothing to undo",
        "failed: cancelled undone: a; NOT undone: b",
    ]


def test_several_steps_at_once_break_off_together():
    lines = rendered(
        (r.SHIFT, "", {}),
        (r.STEP_STARTED, "[gather.0]a", {}),
        (r.STEP_STARTED, "[gather.1]a", {}),
        (r.STEP_STARTED, "[gather.2]a", {}),
        (r.STEP_DONE, "[gather.1]a", {"ms": 1, "result": None}),
        (r.SHIFT, "", {}),
    )
    assert "crash: shift 1 broke off in steps [0] a, [2] a (worker killed or lease lost)" in lines


def test_the_command_is_shown_while_the_wait_is_open():
    renderer = LineRenderer("a" * 18 + "12345678")
    records = [
        r.Record(1, 0, r.APPROVAL, "approval", b'{"what": "Ship?"}', 1.0),
        r.Record(2, 0, r.SIGNAL, "[gather.1]signal x y", b'{"signal": "x y"}', 1.0),
    ]
    lines = [line for record in records for line in renderer.render(record)]
    assert [line.command for line in lines] == ["onward approve 12345678.1", "onward signal 12345678 'x y'"]
    assert [wait.reason for wait in renderer.open_waits.open] == ["approval", "signal"]
    renderer.render(r.Record(3, 0, r.WAITED, "approval", b'{"n": 1}', 1.0))
    assert [renderer.current(line).command for line in lines] == ["", "onward signal 12345678 'x y'"]
    renderer.render(r.Record(4, 0, r.CANCELLED, "", b"{}", 1.0))
    assert [renderer.current(line).command for line in lines] == ["", ""]


def test_waits_of_an_abandoned_saga_are_closed():
    renderer = LineRenderer("t" * 26)
    renderer.render(r.Record(1, 0, r.SAGA, "saga", b"{}", 1.0))
    for seq, key in ((2, "[saga]question"), (3, "[saga/gather.0]question"), (4, "[sagas]question"), (5, "question")):
        renderer.render(r.Record(seq, 0, r.QUESTION, key, b'{"question": "?"}', 1.0))
    renderer.render(r.Record(6, 0, r.UNDOING, "saga", b"{}", 1.0))
    assert [wait.key for wait in renderer.open_waits.open] == ["[sagas]question", "question"]
    renderer.render(r.Record(7, 0, r.CANCEL, "", b"{}", 1.0))
    assert renderer.open_waits.open == []


def test_state_changes_are_short():
    def rendered(kind, fields):
        ((line,),) = [LineRenderer("t").render(r.Record(1, 0, kind, "patch", json.dumps(fields).encode(), 0.0))]
        return f"{line.text}: {line.detail}"

    fact = {"key": "os", "value": "linux", "source": "user"}
    artifact = {"artifact_id": "a", "type": "t", "summary": "a log", "bytes": 1}
    assert rendered(r.PATCHED, {"state": {"goal": "Fix it."}}) == "state: goal: Fix it."
    assert rendered(r.PATCHED, {"patch": {"append_facts": [fact], "replace_plan": ["look", "clean"]}}) == (
        "state: facts: os; plan: look, clean"
    )
    assert rendered(r.PATCHED, {"patch": {"add_artifacts": [artifact]}}) == "state: artifacts: a log"
    assert rendered(r.ARTIFACT, artifact) == "artifact: a log, 1 bytes"
    assert rendered(r.ARTIFACT, {"type": "raw\x1b[31m", "bytes": "?"}) == "artifact: raw\\x1b[31m"
    assert rendered(r.PATCHED, {"patch": 7}) == "state: "
    assert rendered(r.CHECKPOINT, {"number": 3}).startswith("checkpoint 3")


@pytest.mark.parametrize("kind", [r.STEP_DONE, r.PATCHED, r.PROGRESS, r.CHECKPOINT])
def test_dropped_records_are_named(kind):
    (line,) = LineRenderer("t").render(r.Record(7, 2, kind, "read", b'{"dropped":41}', 0.0))
    assert line.detail == "(dropped, covered by checkpoint 41)"
    assert "?" not in line.text
