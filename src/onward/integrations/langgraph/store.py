"""A store of LangGraph (long-term memory) on the database of an app.

The documents, by the first part of their keys:

- `i` namespace, "", key: an item, as JSON
- `v` namespace, "", key: its vectors, where the store has an index
- `e` time, namespace, "", key: when an item expires

An empty part ends a namespace, since no label of a namespace is empty.
"""

from __future__ import annotations

import array
import datetime
import json
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
    validate_op_namespace,
)

from onward.errors import InvalidInput
from onward.integrations.bridge import App, Bridge
from onward.store.shared.documents import PAGE_DOCUMENTS, Collection, Span, key, parts_of, span

COLLECTION = "langgraph.store"

MAX_COMPARED = 20_000
"""Items that one search with a query compares. They are compared one by one."""

SWEEP_EVERY_S = 60.0
"""Seconds after which a write also deletes items that have expired."""

SWEPT_AT_ONCE = 500
"""Items that one write deletes at the most because they have expired."""

HOP_KEYS = 100
"""Keys that one statement reads for a list of namespaces."""

Namespace = tuple[str, ...]


class _Entry(NamedTuple):
    """An item as it is stored. Times are seconds since 1970, `ttl` is in minutes."""

    value: dict[str, Any]
    created: float
    updated: float
    ttl: float | None
    expires: float | None

    def encode(self) -> bytes:
        return json.dumps(list(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> _Entry:
        return cls(*json.loads(data))


class OnwardStore(BaseStore):
    """A store of LangGraph that keeps its items in the database of an app.

        async with Onward() as app:
            graph = builder.compile(store=OnwardStore(app))

    In a program without an event loop, `with app.in_thread():` opens the app. `index` makes items searchable by meaning, and `ttl` lets
    them expire, both as in LangGraph's own stores. Items of a `tenant` are apart from those of others.
    """

    supports_ttl = True

    def __init__(
        self,
        app: App,
        *,
        tenant: str | None = None,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        super().__init__()
        self._bridge = Bridge(app)
        self._documents: Collection = app.store.documents.of(COLLECTION, tenant)
        self.index_config, self.ttl_config = index, ttl
        self.embeddings = None if index is None else ensure_embeddings(index["embed"])
        self._fields = [tokenize_path(path) if path != "$" else path for path in (index or {}).get("fields") or ["$"]]
        self._swept_at = -math.inf

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations from a thread. The reads come before the writes."""
        return self._bridge.run_blocking(self._batch(list(ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations. The reads come before the writes."""
        return await self._bridge.run(self._batch(list(ops)))

    def sweep_ttl(self) -> int:
        """Delete all items that have expired; how many that were. Reads never return them, and writes delete some."""
        return self._bridge.run_blocking(self._sweep(None))

    async def asweep_ttl(self) -> int:
        """See `sweep_ttl`."""
        return await self._bridge.run(self._sweep(None))

    # ── operations ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _batch(self, ops: Sequence[Op]) -> list[Result]:
        for op in ops:
            validate_op_namespace(op)
        results: list[Result] = [None] * len(ops)
        gets = {at: op for at, op in enumerate(ops) if isinstance(op, GetOp)}
        for at, found in (await self._get(gets)).items():
            results[at] = found
        puts: dict[str, PutOp] = {}
        for at, op in enumerate(ops):
            if isinstance(op, SearchOp):
                results[at] = await self._search(op)
            elif isinstance(op, ListNamespacesOp):
                results[at] = await self._namespaces(op)
            elif isinstance(op, PutOp):
                puts[_item_key(op.namespace, op.key)] = op  # the last write of an item holds
            elif not isinstance(op, GetOp):
                raise TypeError(f"a store takes get, put, search and list_namespaces, not {type(op).__name__}")
        if puts:
            await self._put(puts)
        return results

    async def _get(self, gets: Mapping[int, GetOp]) -> dict[int, Item]:
        keys = {_item_key(op.namespace, op.key) for op in gets.values()}
        found = await self._documents.read(sorted(keys)) if keys else {}
        entries = {key_: _Entry.decode(data) for key_, data in found.items()}
        entries = {key_: entry for key_, entry in entries.items() if self._alive(entry)}
        items: dict[int, Item] = {}
        refreshed: dict[str, _Entry] = {}
        for at, op in gets.items():
            key_ = _item_key(op.namespace, op.key)
            if key_ in entries:
                items[at] = Item(**_fields_of(key_, entries[key_]))
                if op.refresh_ttl:
                    refreshed[key_] = entries[key_]
        await self._refresh(refreshed)
        return items

    async def _put(self, puts: Mapping[str, PutOp]) -> None:
        now = self._now()
        before = {key_: _Entry.decode(data) for key_, data in (await self._documents.read(sorted(puts))).items()}
        written: dict[str, bytes] = {}
        drops: list[str] = []
        vectors = await self._vectors(puts)
        for key_, op in puts.items():
            old = before.get(key_)
            if old is not None and old.expires is not None:
                drops.append(_expiry_key(key_, old.expires))
            if op.value is None:
                drops += [key_, _vector_key(key_)]
                continue
            created = old.created if old is not None and self._alive(old) else now
            expires = None if op.ttl is None else now + op.ttl * 60
            written[key_] = _Entry(dict(op.value), created, now, op.ttl, expires).encode()
            if expires is not None:
                written[_expiry_key(key_, expires)] = b""
            if vectors.get(key_):
                written[_vector_key(key_)] = _packed(vectors[key_])
            else:
                drops.append(_vector_key(key_))
        await self._documents.write(written, drops=[key_ for key_ in drops if key_ not in written])
        if now >= self._swept_at + SWEEP_EVERY_S:
            self._swept_at = now
            await self._sweep(SWEPT_AT_ONCE)

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        wanted = op.filter or {}
        if op.query and self.embeddings is not None:
            found = await self._nearest(op, op.query, wanted)
        else:
            found = []
            async for key_, entry in self._entries(op.namespace_prefix, wanted):
                found.append((key_, entry, None))
                if len(found) >= op.offset + op.limit:
                    break
        found = found[op.offset : op.offset + op.limit]
        if op.refresh_ttl:
            await self._refresh({key_: entry for key_, entry, _ in found})
        return [SearchItem(**_fields_of(key_, entry), score=score) for key_, entry, score in found]

    async def _nearest(
        self, op: SearchOp, query: str, wanted: Mapping[str, Any]
    ) -> list[tuple[str, _Entry, float | None]]:
        """All items that fit the filter: those with vectors by their likeness to the query, and then the others."""
        assert self.embeddings is not None
        asked = await self.embeddings.aembed_query(query)
        entries: dict[str, _Entry] = {}
        async for key_, entry in self._entries(op.namespace_prefix, wanted):
            entries[key_] = entry
            if len(entries) > MAX_COMPARED:
                raise InvalidInput(
                    f"a search by meaning compares at most {MAX_COMPARED:,} items, and the namespace "
                    f"{'.'.join(op.namespace_prefix) or '()'} has more; search in a narrower namespace, or with a filter"
                )
        scores: dict[str, float] = {}
        keys = list(entries)
        for at in range(0, len(keys), PAGE_DOCUMENTS):
            page = {_vector_key(key_): key_ for key_ in keys[at : at + PAGE_DOCUMENTS]}
            for vector_key, data in (await self._documents.read(list(page))).items():
                scores[page[vector_key]] = max(_likeness(asked, vector) for vector in _unpacked(data))
        ranked = sorted(scores, key=lambda key_: scores[key_], reverse=True)
        return [(key_, entries[key_], scores.get(key_)) for key_ in [*ranked, *(k for k in keys if k not in scores)]]

    async def _entries(self, prefix: Namespace, wanted: Mapping[str, Any]) -> AsyncIterator[tuple[str, _Entry]]:
        async for key_, data in self._documents.scan(span("i", *prefix)):
            entry = _Entry.decode(data)
            if self._alive(entry) and all(_fits(_field(entry.value, name), value) for name, value in wanted.items()):
                yield key_, entry

    async def _namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        conditions = op.match_conditions or ()
        prefix = next((c.path for c in conditions if c.match_type == "prefix" and "*" not in c.path), ())
        found: dict[Namespace, None] = {}
        start, stop = span("i", *prefix)
        while True:
            keys = await self._documents.first_keys(Span(start, stop), HOP_KEYS)
            for key_ in keys:
                namespace = _place(key_)[0]
                if all(_matches(condition, namespace) for condition in conditions):
                    found[namespace if op.max_depth is None else namespace[: op.max_depth]] = None
            if len(keys) < HOP_KEYS:
                break
            start = span("i", *_place(keys[-1])[0], "").stop  # behind the other items of this namespace
        return sorted(found)[op.offset : op.offset + op.limit]

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _now(self) -> float:
        return self._bridge.app._clock.now()

    def _alive(self, entry: _Entry) -> bool:
        return entry.expires is None or entry.expires > self._now()

    async def _refresh(self, entries: Mapping[str, _Entry]) -> None:
        """Let items expire later, since they were read."""
        now = self._now()
        written: dict[str, bytes] = {}
        drops = []
        for key_, entry in entries.items():
            if entry.ttl is not None and entry.expires is not None:
                expires = now + entry.ttl * 60
                written[key_] = entry._replace(expires=expires).encode()
                written[_expiry_key(key_, expires)] = b""
                drops.append(_expiry_key(key_, entry.expires))
        await self._documents.write(written, drops=[key_ for key_ in drops if key_ not in written])

    async def _sweep(self, most: int | None) -> int:
        marks: list[str] = []
        count = 0
        async for mark in self._documents.keys(Span(span("e").start, key("e", _time(self._now())))):
            marks.append(mark)
            if len(marks) == PAGE_DOCUMENTS:
                count += await self._drop_expired(marks)
                marks = []
                if most is not None and count >= most:
                    return count
        return count + await self._drop_expired(marks)

    async def _drop_expired(self, marks: Sequence[str]) -> int:
        keys = {mark: key("i", *parts_of(mark)[2:]) for mark in marks}
        found = await self._documents.read(sorted(set(keys.values()))) if keys else {}
        dead = {key_ for key_, data in found.items() if not self._alive(_Entry.decode(data))}
        await self._documents.write({}, drops=[*marks, *dead, *(_vector_key(key_) for key_ in dead)])
        return len(dead)

    # ── vectors ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _vectors(self, puts: Mapping[str, PutOp]) -> dict[str, list[list[float]]]:
        """The vectors of the texts of these items."""
        if self.embeddings is None:
            return {}
        texts: dict[str, list[str]] = {}
        for key_, op in puts.items():
            if op.value is not None and op.index is not False:
                fields = self._fields if op.index is None else [tokenize_path(path) for path in op.index]
                texts[key_] = [text for field in fields for text in get_text_at_path(op.value, field)]
        unique = list(dict.fromkeys(text for several in texts.values() for text in several))
        if not unique:
            return {}
        vectors = dict(zip(unique, await self.embeddings.aembed_documents(unique), strict=True))
        return {key_: [vectors[text] for text in several] for key_, several in texts.items()}


def _item_key(namespace: Namespace, name: str) -> str:
    return key("i", *namespace, "", name)


def _vector_key(item_key: str) -> str:
    return "v" + item_key[1:]


def _expiry_key(item_key: str, expires: float) -> str:
    return key("e", _time(expires)) + item_key[1:]


def _time(seconds: float) -> str:
    return f"{seconds:020.6f}"


def _place(item_key: str) -> tuple[Namespace, str]:
    """The namespace and the key of an item."""
    parts = parts_of(item_key)
    return tuple(parts[1:-2]), parts[-1]


def _fields_of(item_key: str, entry: _Entry) -> dict[str, Any]:
    namespace, name = _place(item_key)
    return {
        "namespace": namespace,
        "key": name,
        "value": entry.value,
        "created_at": datetime.datetime.fromtimestamp(entry.created, datetime.UTC),
        "updated_at": datetime.datetime.fromtimestamp(entry.updated, datetime.UTC),
    }


def _packed(vectors: Sequence[Sequence[float]]) -> bytes:
    return (
        json.dumps(len(vectors)).encode() + b"\n" + b"".join(array.array("d", vector).tobytes() for vector in vectors)
    )


def _unpacked(data: bytes) -> list[array.array[float]]:
    count, _, rest = data.partition(b"\n")
    size = len(rest) // int(count)
    return [array.array("d", rest[at : at + size]) for at in range(0, len(rest), size)]


def _likeness(one: Sequence[float], other: Sequence[float]) -> float:
    """The cosine of the angle between two vectors."""
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / lengths if lengths else 0.0


def _matches(condition: MatchCondition, namespace: Namespace) -> bool:
    path = condition.path
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(label in {"*", own} for label, own in zip(path, part, strict=True))


def _field(value: Mapping[str, Any], name: str) -> Any:
    """A field of an item, by its name or by a path with dots."""
    if name in value or "." not in name:
        return value.get(name)
    first, _, rest = name.partition(".")
    return _field(value[first], rest) if isinstance(value.get(first), Mapping) else None


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a field of an item fits a filter: a value, or operators such as `{"$gt": 3}`."""
    if isinstance(wanted, Mapping) and any(str(name).startswith("$") for name in wanted):
        return all(_compares(value, operator, other) for operator, other in wanted.items())
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(_fits(value.get(name), other) for name, other in wanted.items())
    if isinstance(wanted, list | tuple):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(_fits(*pair) for pair in zip(value, wanted, strict=True))
        )
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


def _compares(value: Any, operator: str, other: Any) -> bool:
    if operator == "$eq":
        return _fits(value, other)
    if operator == "$ne":
        return not _fits(value, other)
    if operator not in {"$gt", "$gte", "$lt", "$lte"}:
        raise ValueError(f"a filter takes $eq, $ne, $gt, $gte, $lt and $lte, not {operator!r}")
    if isinstance(value, str) != isinstance(other, str) or not isinstance(value, str | int | float):
        return False
    comparison = {"$gt": value > other, "$gte": value >= other, "$lt": value < other, "$lte": value <= other}
    return bool(comparison[operator])
