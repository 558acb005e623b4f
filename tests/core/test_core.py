"""The values and decisions that need no store: retry, durations, ids, values as bytes, settings."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import random
import threading
import uuid
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward import Fatal, Retry, RetryLater
from onward.cli.output.text import local
from onward.config import Settings, load, variable
from onward.core import wire
from onward.core.durations import seconds
from onward.core.ids import Ids
from onward.core.retry import HOPELESS, NO_RETRY
from onward.core.task import State, open_state
from onward.core.text import iso
from onward.errors import BadSetting, InvalidInput, OnwardError

SEED = random.Random(5)


# ── retry ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_two_four_eight() -> None:
    retry = Retry(attempts=6, jitter=0)
    assert [retry.pause(n, ValueError(), SEED) for n in range(1, 7)] == [1, 2, 4, 8, 16, None]


def test_the_cap() -> None:
    retry = Retry(attempts=100, jitter=0, cap="10s")
    assert [retry.pause(n, ValueError(), SEED) for n in (4, 5, 50, 99)] == [8, 10, 10, 10]


policies = st.builds(
    Retry,
    attempts=st.integers(1, 5000),
    first=st.floats(0, 1e6),
    factor=st.floats(0, 1e12),
    cap=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
)


@given(policies, st.integers(1, 6000), st.integers())
def test_a_pause_is_within_its_bounds_for_every_policy(retry: Retry, attempt: int, seed: int) -> None:
    pause = retry.pause(attempt, ValueError(), random.Random(seed))
    assert (pause is None) == (attempt >= retry.attempts), "there is no pause after the last attempt"
    if pause is not None:
        whole = retry.pause(attempt, ValueError(), _never_random())
        assert whole is not None
        assert 0 <= pause <= float(retry.cap)  # type: ignore[arg-type]
        assert whole * (1 - retry.jitter) <= pause <= whole


def _never_random() -> Any:
    class Zero(random.Random):
        def random(self) -> float:
            return 0.0

    return Zero()


@given(st.integers(0, 2**32))
def test_jitter_spreads(seed: int) -> None:
    rng = random.Random(seed)
    pauses = {Retry(jitter=0.5).pause(3, ValueError(), rng) for _ in range(20)}
    assert len(pauses) > 10
    assert all(2 <= pause <= 4 for pause in pauses if pause is not None)


@pytest.mark.parametrize(("retry_after", "pause"), [(0, 0), (7, 7), (2.5, 2.5), (3600, 3600), (True, 1)])
def test_retry_after_is_obeyed(retry_after: float, pause: float) -> None:
    assert Retry(cap=1).pause(1, RetryLater("busy", retry_after=retry_after), SEED) == pause


@pytest.mark.parametrize("retry_after", [math.nan, math.inf, -math.inf, -1, "soon", None, [], object()])
def test_a_retry_after_that_makes_no_sense_is_ignored(retry_after: Any) -> None:
    """A task must not sleep for ever because a server wrote nonsense into a header."""
    pause = Retry(jitter=0).pause(1, RetryLater("busy", retry_after=retry_after), SEED)
    assert pause == 1


def test_retry_after_does_not_add_attempts() -> None:
    assert Retry(attempts=2).pause(2, RetryLater("busy", retry_after=1), SEED) is None


@pytest.mark.parametrize("kind", [*HOPELESS, type("Mine", (Fatal,), {}), ModuleNotFoundError])
def test_a_fatal_error_is_not_tried_again(kind: type[BaseException]) -> None:
    assert Retry(attempts=10).pause(1, kind("x"), SEED) is None


def test_unless() -> None:
    retry = Retry(attempts=5, unless=(KeyError, OSError))
    assert retry.pause(1, KeyError(), SEED) is None
    assert retry.pause(1, ConnectionError(), SEED) is None
    assert retry.pause(1, ValueError(), SEED) is not None
    assert NO_RETRY.pause(1, ValueError(), SEED) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"jitter": 2},
        {"jitter": -0.1},
        {"first": -1},
        {"cap": math.nan},
        {"first": "x"},
        {"factor": -1},
        {"factor": math.nan},
    ],
)
def test_policies_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSetting):
        Retry(**wrong)


# ── durations and ids ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (90, 90),
        (1.5, 1.5),
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 2d ", 172800),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("1w", 604800),
        (datetime.timedelta(minutes=2), 120),
        (0, 0),
        ("0", 0),
    ],
)
def test_durations(text: Any, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "10 parsecs",
        "1h-5m",
        "-5",
        -1,
        math.inf,
        "inf",
        "nan",
        math.nan,
        datetime.timedelta(-1),
        "9999999999d",
        1e25,
    ],
)
def test_durations_that_make_no_sense(text: Any) -> None:
    with pytest.raises(BadSetting, match="timeout"):
        seconds(text, "timeout")


def test_a_time_that_no_calendar_has_is_shown_all_the_same() -> None:
    """A database of an earlier version may hold one; it must not make a whole list unreadable."""
    assert (iso(1e25), iso(-1e25)) == ("9999-12-31T00:00:00.000Z", "0001-01-02T00:00:00.000Z")
    assert iso(math.inf) is None
    assert local(1e25).startswith("9999-12-3")


@given(st.lists(st.floats(0, 4e9), min_size=2, max_size=50), st.integers())
def test_ids_of_one_process_never_go_backwards(times: list[float], seed: int) -> None:
    clock = iter(times)
    make = Ids(lambda: next(clock), random.Random(seed))
    made = [make() for _ in times]
    assert made == sorted(set(made))
    assert all(len(i) == 26 and i.isascii() and i.isalnum() and i == i.lower() for i in made)


def test_ids_sort_by_the_time_they_were_made() -> None:
    early, late = Ids(lambda: 1e9, random.Random(1)), Ids(lambda: 1e9 + 0.001, random.Random(1))
    assert max(early() for _ in range(100)) < min(late() for _ in range(100))


def test_ids_from_many_threads_are_all_different() -> None:
    make, ids = Ids(lambda: 1e9, random.Random(1)), []
    threads = [threading.Thread(target=lambda: ids.extend([make() for _ in range(500)])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 4000


# ── values as bytes ──────────────────────────────────────────────────────────────────────────────────────────────────

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(anything)
def test_json_comes_back_as_it_was(value: Any) -> None:
    try:
        data = wire.encode(value)
    except InvalidInput:
        assert _has_a_surrogate(value), "nothing else is refused"
        return
    assert wire.decode(data) == value
    assert json.loads(data) == value
    assert data[:1] >= b" ", "the first byte is free to name another codec"
    again = wire.same_as_recorded(value, data)
    assert again == value
    assert type(again) is type(value)


def _has_a_surrogate(value: Any) -> bool:
    return any(0xD800 <= ord(char) <= 0xDFFF for char in json.dumps(value, ensure_ascii=False))


@pytest.mark.slow
@given(st.dictionaries(st.text(alphabet="abcdef"), anything, max_size=5), st.randoms())
def test_a_fingerprint_does_not_depend_on_the_order_of_keys(value: dict[str, Any], rng: random.Random) -> None:
    if _has_a_surrogate(value):
        return
    items = list(value.items())
    rng.shuffle(items)
    assert wire.fingerprint(dict(items)) == wire.fingerprint(value)


def test_different_values_have_different_fingerprints() -> None:
    values = [None, 0, False, "", "0", [], {}, [0], {"a": 1}, {"a": "1"}, 1, 1.5, True, [[]], {"a": None}]
    assert len({wire.fingerprint(value) for value in values}) == len(values)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: int
    inner: Any = None


class Model(pydantic.BaseModel):
    when: datetime.date
    n: int = 1


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ((1, 2), [1, 2]),
        (Point(1, Point(2)), {"x": 1, "inner": {"x": 2, "inner": None}}),
        (Model(when=datetime.date(2026, 1, 2)), {"when": "2026-01-02", "n": 1}),
        ([Model(when=datetime.date(2026, 1, 2))], [{"when": "2026-01-02", "n": 1}]),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (State.PENDING, "pending"),
        (datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC), "2026-01-02T03:04:00+00:00"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (decimal.Decimal("1.10"), "1.10"),
        ("nul \x00 in the middle", "nul \x00 in the middle"),
        ("\u2028 \U0001f600 \ufffe", "\u2028 \U0001f600 \ufffe"),
        (2**63, 2**63),
        (-0.0, -0.0),
    ],
)
def test_values_that_become_json_at_the_edge(value: Any, kept: Any) -> None:
    assert wire.decode(wire.encode(value)) == kept


def _loop() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        [1, -math.inf],
        {"a": math.nan},
        b"bytes",
        {1, 2},
        object(),
        "\ud800",
        {"\udc00": 1},
        ["a\udfffb"],
        _loop(),
        _deep(10_000),
        {(1, 2): 3},
        10**5000,
        lambda: 1,
        Point,
        range(3),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_value_that_is_no_json_is_refused_with_a_sentence(value: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"the answer (cannot be kept as JSON \(.+\); return plain values|is nested more than)"
    ):
        wire.encode(value, "the answer")


def test_a_value_that_is_too_large_is_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidInput, match=r"16,777,2.. bytes, more than the 16,777,216"):
        wire.encode("x" * wire.LIMIT)
    assert len(wire.encode("x" * (wire.LIMIT - 2))) == wire.LIMIT


def test_an_accepted_value_can_be_read_everywhere() -> None:
    """A value as deep as the encoder accepts on an empty stack must be readable on a full one: a web framework
    calls from a hundred frames down, and one task that cannot be read would spoil every list that it is in."""
    data = _on_an_empty_stack(_deepest_accepted)

    def read(frames: int) -> Any:
        return read(frames - 1) if frames else wire.decode(data)

    assert isinstance(read(300), list)
    assert 100 < data.count(b"[") <= wire.MAX_DEPTH, "and deep enough for real values"


def test_depth_is_not_width() -> None:
    wide = [{"a": [f'[[[{"{" * 9}" \\'], "b": {"c": []}} for _ in range(2_000)]
    assert wire.decode(wire.encode(wide)) == wide
    with pytest.raises(InvalidInput, match="nested more than 500 levels deep"):
        wire.encode([wide, _deep(500)])


def _deepest_accepted() -> bytes:
    low, high = 1, 200_000
    while high - low > 1:
        middle = (low + high) // 2
        try:
            wire.encode(_deep(middle))
            low = middle
        except InvalidInput:
            high = middle
    return wire.encode(_deep(low))


def _on_an_empty_stack(function: Any) -> Any:
    answer: list[Any] = []
    thread = threading.Thread(target=lambda: answer.append(function()))
    thread.start()
    thread.join()
    return answer[0]


def test_a_codec_of_the_future_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"codec.*upgrade"):
        wire.decode(b"\x01...")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("plain"), "plain"),
        (Mute(), "(its message could not be read)"),
        (Endless(), "(its message could not be read)"),
        (ValueError("half \ud83d"), "half \\ud83d"),
        (ValueError("nul \x00"), "nul \x00"),
        (ValueError("x" * 100_000), "x" * 10_000),
        (ValueError(), ""),
    ],
)
def test_an_error_as_a_value(error: BaseException, message: str) -> None:
    value = wire.error_value(error)
    assert value == {"type": type(error).__name__, "message": message}
    wire.encode(value)


# ── states and settings ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_state_of_an_unfinished_task() -> None:
    assert open_state("w", "whatever") is State.RUNNING
    assert {
        reason: open_state(None, reason)
        for reason in ("queued", "delayed", "retrying", "asleep", "parked", "quarantined")
    } == {
        "queued": "pending",
        "delayed": "pending",
        "retrying": "pending",
        "asleep": "waiting",
        "parked": "waiting",
        "quarantined": "waiting",
    }


def test_settings_in_their_order(tmp_path: pathlib.Path) -> None:
    (tmp_path / "onward.toml").write_text('lease_s = "40s"\nslots = 5\nqueue_limit = 7\n')
    settings = load({"slots": 9, "db": None}, {"ONWARD_SLOTS": "8", "ONWARD_QUEUE_LIMIT": "6", "PATH": "x"}, tmp_path)
    assert (settings.db, settings.lease_s, settings.slots, settings.queue_limit) == ("sqlite:///onward.db", 40, 9, 6)


@pytest.mark.parametrize(
    ("arguments", "environment", "file", "sentence"),
    [
        ({"slots": "many"}, {}, "", "ONWARD_SLOTS is 'many', but must be a whole number"),
        ({}, {"ONWARD_LEASE_S": "-4"}, "", "ONWARD_LEASE_S"),
        ({"slots": 0}, {}, "", "slots is 0, but must be 1 or more"),
        ({"lease_s": 2, "heartbeat_s": 1.5}, {}, "", "at most half of lease_s"),
        ({"colour": 1}, {}, "", "setting colour"),
        ({}, {}, "nonsense = 1", "setting nonsense"),
        ({}, {}, "this is no toml", "readable TOML"),
    ],
)
def test_settings_that_make_no_sense(
    arguments: Any, environment: Any, file: str, sentence: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "onward.toml").write_text(file)
    with pytest.raises(BadSetting, match=sentence):
        load(arguments, environment, tmp_path)


def test_every_setting_has_a_variable() -> None:
    for field in dataclasses.fields(Settings):
        if field.name == "brokers":
            continue  # each has its own: test_brokers_have_names
        assert variable(field.name) == f"ONWARD_{field.name.upper()}"
        given = {"log": "json", "public_url": "https://a.example", "encryption_plain": "refuse"}.get(field.name, "4")
        if field.name == "oidc_issuer":
            continue  # it needs others beside it: tests/core/test_identity.py
        settings = load({}, {variable(field.name): given} | {"ONWARD_LEASE_S": "9"}, pathlib.Path("/nonexistent"))
        assert getattr(settings, field.name) in {4, given, 9.0}


def test_brokers_have_names(tmp_path: pathlib.Path) -> None:
    (tmp_path / "onward.toml").write_text('[brokers]\norders = "nats://file"\n')
    settings = load({"brokers": {"mail": "redis://here"}}, {"ONWARD_BROKER_EVENTS": "kafka://there"}, tmp_path)
    assert settings.brokers == {"mail": "redis://here", "events": "kafka://there"}
    assert load({}, {}, tmp_path).brokers == {"orders": "nats://file"}
    assert "there" not in repr(settings)
    for wrong in ({"a b": "nats://x"}, {"x": "host:4222"}, {"": "nats://x"}, "nats://x"):
        with pytest.raises(BadSetting):
            load({"brokers": wrong}, {}, tmp_path / "none")


def test_every_error_has_a_code_of_its_own() -> None:
    def all_of(kind: type[OnwardError]) -> list[type[OnwardError]]:
        return [kind, *[subclass for sub in kind.__subclasses__() for subclass in all_of(sub)]]

    kinds = [kind for kind in all_of(OnwardError) if kind.__module__ == "onward.errors"]
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(400 <= kind.status < 600 and 1 <= kind.exit_status <= 6 for kind in kinds)
