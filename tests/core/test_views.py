"""Views: their JSON is read back as the same view, and has the keys that the OpenAPI document names."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any

import pytest

from onward.core import views
from onward.core.doubts import Doubt
from onward.core.durations import Time
from onward.core.journal.waterfall import Bar, Point
from onward.core.task import State, Task
from onward.core.usage import Usage
from onward.core.view_json import from_json, to_json
from onward.server.http.app import ROUTES
from onward.server.schema.openapi import document
from onward.service import serialize

SCHEMAS = document(ROUTES, "0")["components"]["schemas"]

ROUND_TRIPS = [
    *(views.Queue, views.WorkerView, views.HandlerView, views.Stats, views.Check, views.Health, views.Ask, Doubt),
    *(views.Schedule, views.Subscription, views.Delivery, views.Key, views.TurnView, views.UsageReport, views.Acted),
    *(Bar, Point, Task),
]


def example(hint: Any) -> Any:
    """A value of a type that is not the default of any field."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint == Time:
        return 1_700_000_000.125
    if origin in {types.UnionType, typing.Union}:
        return example(next(argument for argument in arguments if argument is not type(None)))
    if origin in {tuple, list}:
        return origin([example(arguments[0])] * 2)
    if origin is typing.Literal:
        return arguments[0]
    if dataclasses.is_dataclass(hint):
        return view_of(hint)
    values = {int: 7, float: 2.5, bool: True, str: "text", State: State.FAILED, Any: {"any": [1, None]}}
    return values.get(hint, {"key": 1})


def view_of(kind: Any) -> Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    hints.pop("with_children", None)
    return kind(**{name: example(hint) for name, hint in hints.items()})


@pytest.mark.parametrize("kind", ROUND_TRIPS)
def test_json_is_read_back_as_the_same_view(kind: Any) -> None:
    view = view_of(kind)
    document = json.loads(json.dumps(to_json(view)))
    assert from_json(kind, document) == view
    assert from_json(kind, document | {"of a newer server": 1}) == view
    assert document.keys() == {field.name for field in dataclasses.fields(kind)}


def test_a_task_without_its_options() -> None:
    task = dataclasses.replace(
        view_of(Task), usage=Usage(1, 2, 3, 4.0, Usage(5, 6, 7, None)), in_flight=None, left_out=(), by=None
    )
    document = serialize.task_json(task)
    assert not document.keys() & {"in_flight", "left_out", "by"}
    assert from_json(Task, document) == task


@pytest.mark.parametrize(
    ("encode", "kind", "name"),
    [
        (serialize.task_json, Task, "Task"),
        (serialize.subscription_json, views.Subscription, "Subscription"),
        (serialize.timeline_json, views.Timeline, "Timeline"),
        (to_json, views.Stats, "Stats"),
        (to_json, Bar, "Bar"),
        (to_json, Point, "Mark"),
        (to_json, views.Queue, "Queue"),
        (to_json, views.WorkerView, "Worker"),
        (to_json, views.HandlerView, "Handler"),
        (to_json, views.Ask, "Ask"),
        (to_json, Doubt, "Doubt"),
        (to_json, views.Schedule, "Schedule"),
        (to_json, views.Delivery, "Delivery"),
        (to_json, views.Key, "Key"),
        (to_json, views.TurnView, "Turn"),
        (to_json, views.UsageReport, "UsageReport"),
        (to_json, views.UsageRow, "UsageRow"),
        (to_json, views.Check, "Finding"),
        (to_json, views.Acted, "Outcome"),
        (to_json, views.Refused, "RefusedTask"),
    ],
)
def test_the_schema_has_the_keys_of_the_json(encode: Any, kind: Any, name: str) -> None:
    schema = SCHEMAS[name]
    assert encode(view_of(kind)).keys() == schema["properties"].keys()
    if encode is to_json:
        assert set(schema["required"]) == schema["properties"].keys()


def test_the_schema_of_a_view_describes_its_fields() -> None:
    worker = SCHEMAS["Worker"]
    assert worker["properties"]["started_at"]["type"] == "string"
    assert worker["properties"]["queues"] == {
        "description": "The queues that it serves; empty for all.",
        "items": {"type": "string"},
        "title": "Queues",
        "type": "array",
    }
    assert (worker["title"], worker["additionalProperties"]) == ("Worker", False)
