"""Inputs that are instances: a model or a dataclass is the whole value of an argument, also where its fields have the names of arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

import pydantic
import pytest

from onward import Onward
from onward.core import wire
from onward.errors import InvalidInput
from onward.service.submission import HandlerSpec, SubmitRequest, from_registration, to_new_task
from tests.kit import Lab


class One(pydantic.BaseModel):
    order: str


class Wrap(pydantic.BaseModel):
    wrap: Wrap | None = None


class Nothing(pydantic.BaseModel):
    size: int = 1


@dataclasses.dataclass
class Labels:
    labels: dict[str, int]


@dataclasses.dataclass
class Goal:
    goal: str
    depth: int = 0


def levels(wrap: Wrap | None) -> int:
    return 0 if wrap is None else 1 + levels(wrap.wrap)


THREE = Wrap(wrap=Wrap(wrap=Wrap()))


def declare(app: Onward) -> None:
    @app.task
    async def one(ctx: Any, order: One) -> str:
        return order.order

    @app.task
    async def deep(ctx: Any, wrap: Wrap) -> int:
        return levels(wrap)

    @app.task
    async def plain(ctx: Any, labels: dict[str, Any]) -> Any:
        return labels

    @app.task
    async def untyped(ctx: Any, order: Any) -> Any:
        return order

    @app.task
    async def optional(ctx: Any, size: Nothing | None = None) -> int:
        return 0 if size is None else size.size

    @app.task
    async def words(ctx: Any, goal: str, depth: int = 0) -> Any:
        return [goal, depth]


GIVEN: list[tuple[str, Any, Any]] = [
    ("one", One(order="x"), "x"),
    ("deep", THREE, 3),
    ("deep", Wrap(), 1),
    ("plain", Labels({"a": 1}), {"labels": {"a": 1}}),
    ("untyped", One(order="x"), {"order": "x"}),
    ("optional", Nothing(size=5), 5),
    ("words", Goal("tea", 2), ["tea", 2]),  # no value of an argument: its fields are the arguments, as ever
    ("one", {"order": {"order": "x"}}, "x"),
    ("one", {"order": One(order="x")}, "x"),
    ("plain", {"labels": {"a": 1}}, {"a": 1}),  # an object, as JSON: its keys are names of arguments
    ("deep", {"wrap": {"wrap": None}}, 1),
]


@pytest.mark.parametrize(("name", "given", "got"), GIVEN, ids=str)
async def test_an_instance_is_the_value_of_one_argument(lab: Lab, name: str, given: Any, got: Any) -> None:
    declare(lab.app)
    assert (await lab.run(name, given)).result == got


async def test_children_get_instances_whole(lab: Lab) -> None:
    declare(lab.app)

    @lab.app.task
    async def parent(ctx: Any) -> list[Any]:
        child = await ctx.submit("deep", THREE)
        return [await child, *await ctx.map("one", [One(order="a"), One(order="b")])]

    assert (await lab.run(parent)).result == [3, "a", "b"]


async def test_forks_get_instances_whole(lab: Lab) -> None:
    declare(lab.app)
    origin = await lab.run("deep", THREE)
    fork = await lab.app.fork(origin.task_id, input=Wrap(wrap=Wrap()))
    assert (await lab.ended(fork.id)).result == 2
    with pytest.raises(InvalidInput):
        await lab.app.fork(origin.task_id, input="x")


async def test_schedules_give_instances_whole(lab: Lab) -> None:
    declare(lab.app)
    lab.app.schedule("often", "deep", THREE, every="10m")
    await lab.app.save_schedules()
    (schedule,) = await lab.app.schedules()
    assert schedule.input == {"wrap": THREE.model_dump()}


def _spec(name: str, *, remote: bool) -> HandlerSpec:
    app = Onward("sqlite:///:memory:")
    declare(app)
    return from_registration(name, app.handlers[name].registration()) if remote else app._handler_specs[name]


@pytest.mark.parametrize("remote", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("one", One(order="x"), {"order": {"order": "x"}}),
        ("deep", Wrap(), {"wrap": {"wrap": None}}),
        ("words", Goal("tea"), {"goal": "tea", "depth": 0}),
        ("optional", One(order="x"), {"order": "x"}),
    ],
)
def test_a_process_that_knows_only_the_schema_stores_the_same(
    name: str, given: Any, stored: Any, *, remote: bool
) -> None:
    spec = _spec(name, remote=remote)
    assert wire.decode(to_new_task(SubmitRequest(name, given), spec, "1").input) == stored


def test_a_key_names_the_same_request_as_before() -> None:
    """Tasks that were submitted before this rule keep their keys: a repetition finds them."""
    spec = _spec("deep", remote=False)
    instance = to_new_task(SubmitRequest("deep", THREE, "k"), spec, "1")
    json = to_new_task(SubmitRequest("deep", THREE.model_dump(), "k"), spec, "2")
    assert instance.fingerprint == json.fingerprint
