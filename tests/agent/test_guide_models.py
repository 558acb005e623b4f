"""The guide on models is true: its code runs, and does what it says."""

from __future__ import annotations

import pytest

from onward import State
from onward.agent.model import ModelUnavailable, Reply, Request, Usage
from onward.agent.prices import cost
from onward.core import record as r
from onward.testing import drain, memory_app
from tests.docs.test_guides import code_of

GUIDE = "models.md"


async def test_models_by_name_and_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    names = code_of(GUIDE, "brains.py")
    assert set(names["app"].handlers) == {"clerk", "reader"}
    assert cost(names["local"], Usage(10, 10)) == 0.0
    await names["app"].close()


async def test_a_model_of_your_own() -> None:
    names = code_of(GUIDE, "house.py")
    async with memory_app(names["app"]) as app:
        handle = await app.submit("parrot", "Hello?")
        await drain(app)
        assert await handle.result() == "You said: Hello?"
        (result,) = [
            record.value["result"] for record in await app.service.journal(handle.id) if record.kind == r.STEP_DONE
        ]
    assert result["usage"] == {"input": 6, "output": 16, "cached": None}
    assert result["cost"] == pytest.approx((6 * 0.10 + 16 * 0.40) / 1_000_000)


async def test_it_waits_for_a_used_up_quota_and_retries_a_lost_server(monkeypatch: pytest.MonkeyPatch) -> None:
    names = code_of(GUIDE, "house.py")
    trouble: list[BaseException] = [MemoryError("full"), ConnectionError("gone")]

    def generate(_: str) -> str:
        if trouble:
            raise trouble.pop(0)
        return "at last"

    monkeypatch.setitem(names["House"].ask.__globals__, "generate", generate)
    async with memory_app(names["app"]) as app:
        start, handle = app.clock.now(), await app.submit("parrot", "Hello?")
        await drain(app)
        assert await handle.result() == "at last"
        assert app.clock.now() - start >= 60
        records = [
            record for record in await app.service.journal(handle.id) if record.kind in {r.STEP_WAITS, r.STEP_RETRY}
        ]
    assert [(record.kind, record.value.get("quota")) for record in records] == [
        (r.STEP_WAITS, "the house"),
        (r.STEP_RETRY, None),
    ]
    with pytest.raises(ModelUnavailable, match="gone"):
        trouble.append(ConnectionError("gone"))
        await names["House"]().ask(Request([{"role": "user", "content": "x"}]), print)
    assert isinstance(await names["House"]().ask(Request([{"role": "user", "content": "x"}]), print), Reply)


async def test_a_step_of_your_own_shares_a_quota() -> None:
    names = code_of(GUIDE, "tickets.py")
    async with memory_app(names["app"]) as app:
        start, handle = app.clock.now(), await app.submit("open_ticket")
        await drain(app)
        task = await handle.get()
        assert (task.state, task.result, task.attempt) == (State.COMPLETED, "ticket 7", 1)
        assert app.clock.now() - start >= 30
