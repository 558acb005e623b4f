"""Results keep the types that annotations name."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from onward import Onward
from onward.core import wire
from onward.core.result_types import check_result_type, encode_plain, result_type, type_of
from onward.engine.handlers import Handler
from onward.errors import InvalidInput, UsageError
from tests.core.result_cases import CASES, Color, Item, Point


@pytest.mark.parametrize("annotation", CASES, ids=str)
@given(data=st.data())
def test_a_value_comes_back_equal_and_of_its_type(annotation: Any, data: st.DataObject) -> None:
    value = data.draw(CASES[annotation])
    check_result_type(returning(annotation), "it")
    declared = type_of(annotation)
    recorded = wire.decode(wire.encode(value if declared is None else declared.dump(value)))
    loaded = recorded if declared is None else declared.load(recorded)
    assert (loaded, type(loaded)) == (value, type(value))


class Both(enum.Enum):
    PAIR = (1, 2)


class Base(BaseModel):
    a: int
    b: int = 0


class Other(BaseModel):
    a: int


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (Iterator[int], "can be read only once"),
        (AsyncIterator[int], "can be read only once"),
        (Callable[[], int], "is code"),
        (list[Callable[[], int]], "is code"),
        (type[int], "is code"),
        (Both, "the values of Both are not all strings or numbers"),
        (dict[tuple[int, int], str], "JSON has no tuple[int, int] as the name of a field"),
        (dict[int | str, str], "JSON has no int | str as the name of a field"),
        (str | datetime.datetime, "JSON has a string for str and for datetime"),
        (list[str | bytes], "JSON has a string for str and for bytes"),
        (set[int] | list[int], "JSON has a list for set[int] and for list[int]"),
        (Item | dict[str, Any], "JSON has an object for Item and for dict[str, Any]"),
        (ValueError, "ValueError has no JSON form"),
        (slice, "slice has no JSON form"),
    ],
    ids=str,
)
def test_a_handler_that_declares_a_result_that_cannot_be_recorded_is_refused(annotation: Any, reason: str) -> None:
    app = Onward("sqlite://")
    with pytest.raises(UsageError) as refused:
        app.task(name="give")(returning(annotation, context=True))
    assert "the handler 'give' declares a result that cannot be recorded" in str(refused.value)
    assert reason in str(refused.value)


@pytest.mark.parametrize("annotation", ["Missing", "list[Missing]"])
def test_an_annotation_that_cannot_be_found_says_nothing(annotation: Any) -> None:
    function = returning(annotation)
    check_result_type(function, "it")
    assert result_type(function) is None


def test_a_member_of_a_union_that_comes_back_as_another_is_refused() -> None:
    declared = type_of(Base | Other)
    assert declared is not None
    value = Other(a=1)
    with pytest.raises(InvalidInput, match="comes back from its record as a Base"):
        declared.check_same(value, declared.load(declared.dump(value)))


def test_a_dict_for_a_model_becomes_the_model() -> None:
    """A step that is annotated with a model may return the JSON that it got from elsewhere."""
    declared = type_of(list[Point])
    assert declared is not None
    assert declared.load(declared.dump([{"x": 1, "y": 2}])) == [Point(1, 2)]


def test_a_value_of_another_type_is_refused_with_both_names() -> None:
    declared = type_of(datetime.date)
    assert declared is not None
    with pytest.raises(InvalidInput, match="object cannot be kept as the date that is declared"):
        declared.dump(object())


class Row(TypedDict):
    name: str
    count: int


@pytest.mark.parametrize(
    ("annotation", "value", "would"),
    [
        (int, decimal.Decimal(5), "Decimal would come back as a str"),
        (float, decimal.Decimal("5.5"), "Decimal would come back as a str"),
        (list[int], [1, decimal.Decimal(5)], "Decimal would come back as a str"),
        (dict[str, int], {"a": datetime.date(2026, 1, 1)}, "date would come back as a str"),
        (int | None, uuid.UUID(int=1), "UUID would come back as a str"),
        (str, Point(1, 2), "Point would come back as a dict"),
        (Literal[1, 2], Color.RED, "Color would come back as a str"),
        (list[dict[str, float]], [{"a": decimal.Decimal(1)}], "Decimal would come back as a str"),
        (None, decimal.Decimal(1), "Decimal would come back as a str"),
    ],
    ids=str,
)
def test_an_object_that_would_come_back_as_a_type_that_is_not_declared_is_refused(
    annotation: Any, value: Any, would: str
) -> None:
    function = returning(annotation)
    assert result_type(function) is None, "plain"
    with pytest.raises(InvalidInput, match=would):
        encode_plain(function, value)
    with pytest.raises(InvalidInput, match=would):
        Handler("work", function).dump_result(value)


@pytest.mark.parametrize(
    ("annotation", "value", "recorded"),
    [
        (str, uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (str | int, datetime.date(2026, 1, 1), "2026-01-01"),
        (list, [datetime.date(2026, 1, 1)], ["2026-01-01"]),
        (dict[str, Any], {"a": decimal.Decimal(5)}, {"a": "5"}),
        (Any, decimal.Decimal(5), "5"),
        (dict[str, int], Point(1, 2), {"x": 1, "y": 2}),
        (Row, {"name": Color.RED, "count": 1}, {"name": "red", "count": 1}),
        (list[int], (1, 2), [1, 2]),
        (int, "5", "5"),
    ],
    ids=str,
)
def test_an_object_becomes_json_where_the_annotation_has_its_form(annotation: Any, value: Any, recorded: Any) -> None:
    """Also where the annotation says nothing; and the annotation does not check values that are JSON."""
    function = returning(annotation)
    assert wire.decode(encode_plain(function, value)) == recorded
    assert wire.decode(wire.encode(Handler("work", function).dump_result(value))) == recorded


def returning(annotation: Any, *, context: bool = False) -> Callable[..., Any]:
    """A function with this return annotation."""

    def with_context(ctx: Any) -> Any:
        del ctx

    def without() -> Any:
        pass

    function = with_context if context else without
    function.__annotations__["return"] = annotation
    return function


# ── closures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_closures_of_one_code_share_their_type() -> None:
    def make(number: int) -> Callable[[], Any]:
        def step() -> Point:
            return Point(number, number)

        return step

    declared = result_type(make(1))
    assert declared is not None
    assert result_type(make(2)) is declared


def test_closures_of_one_code_may_return_different_types() -> None:
    def make(annotation: Any) -> Callable[[], Any]:
        def step() -> Any:
            return annotation

        step.__annotations__["return"] = annotation
        return step

    for annotation in (Point, datetime.date, list[Point], Point):
        declared = result_type(make(annotation))
        assert declared is not None
        assert declared.annotation == annotation
    assert result_type(make(int)) is None


def test_a_type_that_is_made_later_is_found_for_the_next_closure() -> None:
    def make(number: int) -> Callable[[], Any]:
        def step() -> Any:
            return number

        step.__annotations__["return"] = "MadeLater"
        return step

    assert result_type(make(1)) is None
    globals()["MadeLater"] = Point
    try:
        declared = result_type(make(2))
    finally:
        del globals()["MadeLater"]
    assert declared is not None
    assert declared.annotation is Point
