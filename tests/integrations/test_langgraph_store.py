"""The store for LangGraph: items, filters, time. LangGraph's own tests of stores are in `test_langgraph_suites.py`."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.store.base import GetOp, PutOp

from onward import Onward
from onward.errors import InvalidInput
from onward.integrations.langgraph import OnwardStore
from onward.integrations.langgraph import store as module
from onward.store.port.core import Store
from tests.kit import HandClock, sql


async def test_items_of_tenants_are_apart(store: Store) -> None:
    app = Onward(store=store)
    for tenant in ("acme", "globex"):
        await OnwardStore(app, tenant=tenant).aput(("people",), "ada", {"of": tenant})
    found = await OnwardStore(app, tenant="acme").aget(("people",), "ada")
    assert found is not None
    assert found.value == {"of": "acme"}
    await OnwardStore(app, tenant="acme").adelete(("people",), "ada")
    assert len(await OnwardStore(app, tenant="globex").asearch(())) == 1


async def test_an_item_keeps_its_first_time(store: Store) -> None:
    clock = HandClock()
    memory = OnwardStore(Onward(store=store, clock=clock))
    await memory.aput(("a",), "k", {"n": 1})
    clock.jump(60)
    await memory.aput(("a",), "k", {"n": 2})
    found = await memory.aget(("a",), "k")
    assert found is not None
    assert (found.updated_at - found.created_at).total_seconds() == pytest.approx(60, abs=1)


async def test_items_expire_and_are_deleted(store: Store) -> None:
    clock = HandClock()
    memory = OnwardStore(Onward(store=store, clock=clock))
    await memory.aput(("a",), "short", {}, ttl=1)
    await memory.aput(("a",), "long", {}, ttl=10)
    await memory.aput(("a",), "always", {})
    clock.jump(59)
    assert await memory.aget(("a",), "short") is not None, "and this read lets it live on"
    clock.jump(59)
    assert await memory.aget(("a",), "short", refresh_ttl=False) is not None
    clock.jump(2)
    assert await memory.aget(("a",), "short") is None
    assert [item.key for item in await memory.asearch(("a",), refresh_ttl=False)] == ["always", "long"]
    assert await memory.asweep_ttl() == 1
    clock.jump(3600)
    await memory.aput(("b",), "other", {})
    assert await sql(store, "SELECT count(*) FROM onward_documents") == [(2,)], "a write deletes what has expired"


async def test_the_last_write_of_a_batch_holds_and_reads_come_first(store: Store) -> None:
    memory = OnwardStore(Onward(store=store))
    found = await memory.abatch([PutOp(("a",), "k", {"n": 1}), PutOp(("a",), "k", {"n": 2}), GetOp(("a",), "k")])
    assert found == [None, None, None]
    assert [item.value for item in await memory.asearch(("a",))] == [{"n": 2}]


@pytest.mark.parametrize(
    ("wanted", "keys"),
    [
        ({"n": 2}, ["two"]),
        ({"n": {"$gt": 1}}, ["three", "two"]),
        ({"n": {"$gte": 2, "$lt": 3}}, ["two"]),
        ({"n": {"$ne": 2}}, ["no", "one", "three"]),
        ({"n": {"$gt": "1"}}, []),
        ({"deep.er": "x"}, ["one"]),
        ({"deep": {"er": "x"}}, ["one"]),
        ({"n": True}, []),
    ],
)
async def test_filters(store: Store, wanted: dict[str, Any], keys: list[str]) -> None:
    memory = OnwardStore(Onward(store=store))
    for name, value in (("one", {"n": 1, "deep": {"er": "x"}}), ("two", {"n": 2}), ("three", {"n": 3}), ("no", {})):
        await memory.aput(("a",), name, value)
    assert sorted(item.key for item in await memory.asearch(("a",), filter=wanted)) == keys


async def test_namespaces_with_many_items_are_hopped_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOP_KEYS", 3)
    memory = OnwardStore(Onward(store=store))
    spaces = [("a",), ("a", "b"), ("a", "bc"), ("b", "x", "y")]
    await memory.abatch([PutOp(space, str(number), {}) for space in spaces for number in range(8)])
    assert await memory.alist_namespaces() == spaces
    assert await memory.alist_namespaces(prefix=("a", "b")) == [("a", "b")]
    assert await memory.alist_namespaces(suffix=("y",), max_depth=1) == [("b",)]


async def test_a_search_by_meaning_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COMPARED", 2)

    async def embed(texts: list[str]) -> list[list[float]]:
        return [[float(text.count(letter)) for letter in "abc"] for text in texts]

    memory = OnwardStore(Onward(store=store), index={"dims": 3, "embed": embed, "fields": ["text"]})
    await memory.aput(("d",), "1", {"text": "aab"})
    await memory.aput(("d",), "2", {"text": "ccc"})
    found = await memory.asearch(("d",), query="a")
    assert [(item.key, round(item.score or 0, 2)) for item in found] == [("1", 0.89), ("2", 0.0)]
    await memory.aput(("d",), "3", {"text": "b"})
    with pytest.raises(InvalidInput, match="narrower namespace"):
        await memory.asearch(("d",), query="a")
