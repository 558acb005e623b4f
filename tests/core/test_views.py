"""Views: their JSON is read back as the same view, and has the keys that the OpenAPI document names."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any

import pytest

from onward.core import views
from onward.core.durations import Time
from onward.core.journal.waterfall import Bar, Point
from onward.core.task import State, Task
from onward.core.usage import Usage
from onward.core.view_json import from_json, to_json
from onward.server.http.routes import bulk, introspection, keys, subscriptions
from onward.server.schema import shapes
from onward.service import serialize

ROUND_TRIPS = [
    *(views.Queue, views.WorkerView, views.HandlerView, views.Stats, views.Check, views.Health, views.Ask, views.Doubt),
    *(views.Schedule, views.Subscription, views.Delivery, views.Key, views.TurnView, views.UsageReport, views.Acted),
    *(Bar, Point, Task),
]


def example(hint: Any) -> Any:
    """A value of a type, which is not the default of any field."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint == Time:
        return 1_700_000_000.125
    if origin in {types.UnionType, typing.Union}:
        return example(next(argument for argument in arguments if argument is not type(None)))
    if origin in {tuple, list}:
        return origin([example(arguments[0])] * 2)
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
    ("encode", "kind", "shape"),
    [
        (serialize.task_json, Task, shapes.TaskShape),
        (serialize.queue_json, views.Queue, shapes.QueueShape),
        (serialize.worker_json, views.WorkerView, shapes.WorkerShape),
        (serialize.stats_json, views.Stats, shapes.StatsShape),
        (serialize.ask_json, views.Ask, shapes.AskShape),
        (to_json, views.Doubt, shapes.DoubtShape),
        (serialize.schedule_json, views.Schedule, shapes.ScheduleShape),
        (serialize.subscription_json, views.Subscription, subscriptions.SubscriptionShape),
        (serialize.delivery_json, views.Delivery, subscriptions.DeliveryShape),
        (serialize.key_json, views.Key, keys.KeyShape),
        (serialize.turn_json, views.TurnView, introspection.TurnShape),
        (serialize.timeline_json, views.Timeline, introspection.TimelineShape),
        (to_json, Bar, introspection.BarShape),
        (to_json, Point, introspection.MarkShape),
        (to_json, views.HandlerView, introspection.HandlerShape),
        (to_json, views.UsageReport, introspection.UsageReport),
        (to_json, views.UsageRow, introspection.UsageRow),
        (to_json, views.Check, introspection.Finding),
        (to_json, views.Acted, bulk.Outcome),
        (to_json, views.Refused, bulk.RefusedTask),
    ],
)
def test_the_schema_has_the_keys_of_the_json(encode: Any, kind: Any, shape: Any) -> None:
    schema = shape.model_json_schema(mode="serialization")
    assert encode(view_of(kind)).keys() == schema["properties"].keys()
