"""Documents: keys in order, ranges, tenants apart, all or nothing, sealed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.errors import InvalidInput
from onward.store.port.core import Store
from onward.store.shared import documents
from onward.store.shared.documents import MAX_DOCUMENT_BYTES, PAGE_DOCUMENTS, Span, key, parts_of, span
from tests.kit import encrypt, sql

PARTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), min_size=1, max_size=4)


@given(PARTS, PARTS)
def test_a_range_has_the_keys_that_begin_with_its_parts(parts: list[str], others: list[str]) -> None:
    assert parts_of(key(*parts)) == parts
    start, stop = span(*parts)
    inside = start.encode() <= key(*others).encode() < stop.encode()
    assert inside == (others[: len(parts)] == parts and len(others) > len(parts))
    assert "\x00" not in key(*others), "PostgreSQL does not take it"


def test_a_key_is_bounded() -> None:
    with pytest.raises(InvalidInput, match="more than 2,000 bytes"):
        key("c", "ä" * 1500)


async def test_puts_adds_and_drops(store: Store) -> None:
    shelf = store.documents.of("tests")
    await shelf.write({"a": b"1", "b": b"2"})
    await shelf.write({"a": b"3"}, adds={"b": b"not", "c": b"4"}, drops=["missing"])
    assert await shelf.read(["a", "b", "c", "d"]) == {"a": b"3", "b": b"2", "c": b"4"}
    await shelf.write({}, drops=["a", "c"])
    assert await shelf.read(["a", "b", "c"]) == {"b": b"2"}


async def test_collections_and_tenants_are_apart(store: Store) -> None:
    shelves = [store.documents.of(name, tenant) for name in ("x", "y") for tenant in (None, "acme", "globex")]
    for number, shelf in enumerate(shelves):
        await shelf.write({"k": str(number).encode()})
    assert [(await shelf.read(["k"]))["k"] for shelf in shelves] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    await shelves[0].drop(Span("", "\x7f"))
    assert [len(await shelf.read(["k"])) for shelf in shelves] == [0, 1, 1, 1, 1, 1]


async def test_ranges_in_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PAGE_KEYS", 7)
    shelf = store.documents.of("tests")
    count = PAGE_DOCUMENTS * 2 + 3
    names = [key("t", f"{number:04}") for number in range(count)]
    await shelf.write({name: name.encode() for name in names} | {key("s", "x"): b"", key("u", "x"): b""})
    assert [name async for name, _ in shelf.scan(span("t"))] == names
    assert [data async for _, data in shelf.scan(span("t"), back=True)] == [name.encode() for name in names[::-1]]
    assert [name async for name in shelf.keys(span("t"))] == names
    assert await shelf.last(span("t")) == (names[-1], names[-1].encode())
    assert await shelf.last(span("nothing")) is None
    await shelf.drop(span("t"))
    assert [name async for name in shelf.keys(Span("", "\x7f"))] == [key("s", "x"), key("u", "x")]


async def test_a_document_that_is_too_large_is_refused_and_nothing_is_written(store: Store) -> None:
    shelf = store.documents.of("tests")
    with pytest.raises(InvalidInput, match="keep large data as an artifact"):
        await shelf.write({"small": b"1", "large": bytes(MAX_DOCUMENT_BYTES + 1)})
    assert await shelf.read(["small"]) == {}


async def test_documents_are_sealed_and_old_ones_can_be(store: Store) -> None:
    shelf = store.documents.of("tests", "acme")
    await shelf.write({"old": b"plain words"})
    encrypt(store)
    await shelf.write({"new": b"secret words"})
    assert await shelf.read(["old", "new"]) == {"old": b"plain words", "new": b"secret words"}
    assert await _stored(store) == {"old": True, "new": False}
    assert await store.documents.seal() == 1
    assert await store.documents.seal() == 0
    assert await _stored(store) == {"old": False, "new": False}
    assert await shelf.read(["old", "new"]) == {"old": b"plain words", "new": b"secret words"}


async def _stored(store: Store) -> dict[str, bool]:
    """Which documents can be read in the table."""
    return {name: b"words" in bytes(data) for name, data in await sql(store, "SELECT key, data FROM onward_documents")}
