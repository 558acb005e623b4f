"""A result has the same value and type everywhere: in the first run, in a replay, in the parent, in `result()`, and in both clients."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from onward import Onward
from tests.client.conftest import serving
from tests.core.result_cases import CASES


def _samples() -> list[tuple[Any, Any]]:
    """Each annotation with a value. The first values that Hypothesis draws are the simplest ones; these are the fifth ones."""
    drawn: list[Any] = []

    @seed(7)
    @settings(max_examples=5, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.tuples(*CASES.values()))
    def draw(values: tuple[Any, ...]) -> None:
        drawn[:] = values

    draw()
    return list(zip(CASES, drawn, strict=True))


def _declare(app: Onward, name: str, annotation: Any, value: Any) -> None:
    def make() -> Any:
        return value

    async def give(ctx: Any) -> Any:
        return await ctx.step(make)

    for function in (make, give):
        function.__annotations__["return"] = annotation
    app.task(name=name)(give)


async def test_a_value_is_the_same_everywhere(app: Onward, either: Any) -> None:
    samples = {f"give {number}": sample for number, sample in enumerate(_samples())}
    runs: list[dict[str, Any]] = []

    @app.task
    async def collect(ctx: Any) -> int:
        values: dict[str, Any] = {}
        for name, (annotation, value) in samples.items():

            def make(value: Any = value) -> Any:
                return value

            make.__annotations__["return"] = annotation
            values[f"step {name}"] = await ctx.step(make, name=f"step {name}")
            values[f"child {name}"] = await (await ctx.submit(name))
        runs.append(values)
        if len(runs) < 2:
            raise ConnectionError("once more, from the journal")
        return len(runs)

    for name, (annotation, value) in samples.items():
        _declare(app, name, annotation, value)
    async with serving(app) as address, app.worker(slots=20):
        client = either(address)
        assert await (await app.submit(collect)).result(timeout=60) == 2
        for name, (annotation, value) in samples.items():
            task = await app.submit(name)
            seen = {
                "step": runs[0][f"step {name}"],
                "step, replayed": runs[1][f"step {name}"],
                "child": runs[0][f"child {name}"],
                "child, replayed": runs[1][f"child {name}"],
                "result()": await task.result(timeout=60),
                "result() by id": await app.handle(task.id).result(timeout=60),
                "client": await client.result(task.id, timeout=60, returns=annotation),
            }
            assert {where: (type(item), item) for where, item in seen.items()} == dict.fromkeys(
                seen, (type(value), value)
            )
