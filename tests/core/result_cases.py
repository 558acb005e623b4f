"""Annotations of results, each with a strategy for values."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import pathlib
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NewType

from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, computed_field
from typing_extensions import TypedDict


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Sort(enum.StrEnum):
    TEA = "tea"
    MILK = "milk"


class Item(BaseModel):
    sort: Sort
    price: decimal.Decimal
    tags: set[str] = set()


class Strict(BaseModel):
    """Strict, without unknown fields, with other names outside, and with a field that is computed."""

    model_config = ConfigDict(strict=True, extra="forbid")

    at: datetime.datetime
    number: int = Field(alias="No", serialization_alias="nr")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return self.number * 2


class Paid(BaseModel):
    kind: Literal["paid"] = "paid"
    amount: decimal.Decimal


class Refused(BaseModel):
    kind: Literal["refused"] = "refused"
    why: str


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass(frozen=True)
class Line:
    points: tuple[Point, ...]
    drawn: datetime.date | None = None


class Pair(NamedTuple):
    a: int
    b: datetime.date


class Row(TypedDict):
    id: uuid.UUID
    when: datetime.datetime


class PlainRow(TypedDict, total=False):
    name: str
    count: int


Cents = NewType("Cents", int)
Moment = NewType("Moment", datetime.datetime)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTS = st.integers(-(2**53), 2**53)
DATES = st.dates()
ZONES = st.sampled_from([None, datetime.UTC, datetime.timezone(datetime.timedelta(hours=5, minutes=30))])
TIMES = st.datetimes(timezones=ZONES)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**9), max_value=10**9)
ITEMS = st.builds(Item, sort=st.sampled_from(Sort), price=DECIMALS, tags=st.sets(TEXT, max_size=3))
POINTS = st.builds(Point, INTS, INTS)
JSON = st.recursive(
    st.none() | st.booleans() | INTS | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)

CASES: dict[Any, st.SearchStrategy[Any]] = {
    None: st.none(),
    bool: st.booleans(),
    int: INTS,
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: TEXT,
    bytes: st.binary(max_size=50),
    complex: st.complex_numbers(allow_nan=False, allow_infinity=False),
    datetime.datetime: TIMES,
    datetime.date: DATES,
    datetime.time: st.times(),
    datetime.timedelta: st.timedeltas(datetime.timedelta(-99999), datetime.timedelta(99999)),
    decimal.Decimal: DECIMALS,
    uuid.UUID: st.uuids(),
    pathlib.Path: st.sampled_from([pathlib.Path("a/b.txt"), pathlib.Path("/tmp"), pathlib.Path()]),
    re.Pattern: st.sampled_from([re.compile("a+"), re.compile("[a-z]")]),
    ipaddress.IPv4Address: st.ip_addresses(v=4),
    ipaddress.IPv6Network: st.just(ipaddress.IPv6Network("2001:db8::/32")),
    Color: st.sampled_from(Color),
    Level: st.sampled_from(Level),
    Sort: st.sampled_from(Sort),
    Item: ITEMS,
    Strict: st.builds(lambda at, number: Strict(at=at, No=number), TIMES, INTS),
    Point: POINTS,
    Line: st.builds(Line, st.lists(POINTS, max_size=3).map(tuple), st.none() | DATES),
    Pair: st.builds(Pair, INTS, DATES),
    Row: st.fixed_dictionaries({"id": st.uuids(), "when": TIMES}),
    PlainRow: st.fixed_dictionaries({}, optional={"name": TEXT, "count": INTS}),
    Cents: INTS,
    Moment: TIMES,
    list[Item]: st.lists(ITEMS, max_size=3),
    list[bytes]: st.lists(st.binary(max_size=9), max_size=3),
    tuple[int, str, datetime.date]: st.tuples(INTS, TEXT, DATES),
    tuple[int, ...]: st.lists(INTS, max_size=4).map(tuple),
    tuple[()]: st.just(()),
    set[int]: st.sets(INTS, max_size=4),
    frozenset[uuid.UUID]: st.frozensets(st.uuids(), max_size=3),
    collections.deque[int]: st.lists(INTS, max_size=3).map(collections.deque),
    dict[int, str]: st.dictionaries(INTS, TEXT, max_size=3),
    dict[datetime.date, list[Point]]: st.dictionaries(DATES, st.lists(POINTS, max_size=2), max_size=3),
    dict[Color, Item]: st.dictionaries(st.sampled_from(Color), ITEMS, max_size=2),
    dict[uuid.UUID, tuple[int, int]]: st.dictionaries(st.uuids(), st.tuples(INTS, INTS), max_size=2),
    dict[str, Any]: st.dictionaries(TEXT, JSON, max_size=3),
    collections.Counter[str]: st.dictionaries(TEXT, st.integers(1, 9), max_size=3).map(collections.Counter),
    collections.OrderedDict[str, Point]: st.dictionaries(TEXT, POINTS, max_size=3).map(collections.OrderedDict),
    Sequence[Point]: st.lists(POINTS, max_size=3),
    Iterable[datetime.date]: st.lists(DATES, max_size=3),
    Mapping[str, set[int]]: st.dictionaries(TEXT, st.sets(INTS, max_size=2), max_size=2),
    Item | None: st.none() | ITEMS,
    int | datetime.datetime | None: st.none() | INTS | TIMES,
    Paid | Refused: st.builds(Paid, amount=DECIMALS) | st.builds(Refused, why=TEXT),
    Annotated[Paid | Refused, Field(discriminator="kind")]: st.builds(Paid, amount=DECIMALS)
    | st.builds(Refused, why=TEXT),
    Literal["a", "b", 3]: st.sampled_from(["a", "b", 3]),
    Annotated[list[Item], "sorted"]: st.lists(ITEMS, max_size=2),
    Any: JSON,
}
