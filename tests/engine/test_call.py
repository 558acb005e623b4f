"""An input and the arguments made from it: the schema of a function refuses no input that the function takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from onward import Onward
from onward.core import call
from onward.engine.context.arguments import Arguments
from onward.errors import InvalidInput
from onward.service.service import REGISTRATIONS_TTL_S
from onward.service.submission import SubmitRequest
from tests.kit import Lab


class Model(BaseModel):
    """A model with fields."""

    a: int = 0


@dataclasses.dataclass
class Pair:
    """Another."""

    a: int
    b: str = ""


def nothing() -> None: ...
def one(a: str) -> None: ...
def anything(a: Any) -> None: ...
def number(a: int) -> None: ...
def maybe(a: float = 1.5, b: bool = False) -> None: ...
def several(a: int, b: str, c: list[int] | None = None) -> None: ...
def model(a: Model) -> None: ...
def pair(a: Pair, b: str = "") -> None: ...
def mapping(a: dict[str, int]) -> None: ...
def whatever(a: int = 0, **more: Any) -> None: ...
def two(a: Any, b: Any, c: Any = None) -> None: ...
def loose(a: Any, **more: Any) -> None: ...
def rest(*a: int) -> None: ...
def placed(a: int, /, b: str = "") -> None: ...
def secret(a: SecretStr, b: str = "") -> None: ...


FUNCTIONS: list[Callable[..., None]] = [
    nothing, one, anything, number, maybe, several, model, pair, mapping, whatever, rest, placed, secret,
]  # fmt: skip
UNTYPED: list[Callable[..., None]] = [nothing, anything, two, loose]

plain = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "7"]) | st.just({"$secret": "KEY"})
names = st.sampled_from(["a", "b", "c", "more"])
values = st.recursive(plain, lambda part: st.lists(part, max_size=2) | st.dictionaries(names, part, max_size=3))


def schema(arguments: Arguments) -> dict[str, Any]:
    """The schema as a worker registers it in the store."""
    return arguments.schema() | {"additionalProperties": arguments.open_ended}


def takes(check: Callable[[], object]) -> bool:
    try:
        check()
    except InvalidInput:
        return False
    return True


@given(st.sampled_from(FUNCTIONS), values)
def test_the_schema_refuses_nothing_that_the_function_takes(function: Callable[..., None], value: Any) -> None:
    arguments = Arguments(function, "it")
    if takes(lambda: arguments.of(value)):
        call.check(value, schema(arguments), "it")


@given(st.sampled_from(UNTYPED), values)
def test_where_only_names_count_both_say_the_same(function: Callable[..., None], value: Any) -> None:
    arguments = Arguments(function, "it")
    assert takes(lambda: call.check(value, schema(arguments), "it")) == takes(lambda: arguments.of(value))


@pytest.mark.parametrize(
    ("function", "value", "message"),
    [
        (one, {"nmae": "you"}, 'it takes an object with a: string, and the input is {"nmae": "you"}'),
        (number, [1], "it takes an object with a: integer, and the input is [1]"),
        (several, {"a": 1}, 'it takes an object with a: integer, b: string, c, and the input is {"a": 1}'),
        (nothing, 7, "it takes no input, and the input is 7"),
        (secret, {"aa": "sk-in-clear"}, "it: the input for 'a' has a secret in clear text"),
        (secret, {"b": ["sk-in-clear"], "a": {"$secret": "K"}}, "it takes an object with a: object, b: string, and the input is something else"),
    ],
)  # fmt: skip
def test_the_error_of_a_process_without_the_code(function: Callable[..., None], value: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        call.check(value, schema(Arguments(function, "it")), "it")
    assert str(refused.value).startswith(message)
    assert "sk-in-clear" not in str(refused.value)


async def test_a_process_without_the_code_refuses_inputs_that_no_worker_takes(lab: Lab) -> None:
    async def greet(ctx: Any, name: str) -> None: ...
    async def greet_twice(ctx: Any, name: str, other: str) -> None: ...

    lab.app.task(greet)
    await lab.start()
    client_app = Onward(store=lab.store, clock=lab.clock)
    with pytest.raises(InvalidInput, match=r"task 'greet' takes an object with name: string, and the input is"):
        await client_app.submit("greet", {"nmae": "you"})
    assert (await lab.app.list())[0] == []
    await client_app.submit("greet", {"name": "you"})

    two = {"name": "you", "other": "me"}
    newer = Lab(lab.clock, store=lab.store)
    newer.app.task(name="greet", queue="new")(greet_twice)
    await newer.start()
    # before it refuses an input, the process reads the registrations again
    (task_id,) = await client_app.service.submit([SubmitRequest("greet", two)])
    assert (await client_app.get(task_id)).queue == "new"

    newest = Lab(lab.clock, store=lab.store)
    newest.app.task(name="greet", queue="newest")(greet_twice)
    await newest.start()
    await lab.clock.until(lab.clock.sleep(REGISTRATIONS_TTL_S + 1))
    (task_id,) = await client_app.service.submit([SubmitRequest("greet", two)])
    assert (await client_app.get(task_id)).queue == "newest", "registrations are read again after their TTL"
    await newest.stop()
    await newer.stop()
