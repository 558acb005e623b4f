"""Documents that integrations keep beside tasks, such as the checkpoints of a LangGraph thread.

A document has a tenant, a collection and a key. Keys are ordered by their bytes: an integration builds them from parts (`key`), and reads
or drops the range of all keys that begin with the same parts (`span`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

from onward.core.encryption import document_place
from onward.core.sealed import UNREADABLE, is_sealed, unreadable
from onward.errors import InvalidInput
from onward.store.shared.codec import Item
from onward.store.shared.database import Connection, Database, OverDatabase

MAX_DOCUMENT_BYTES = 32_000_000
"""Bytes of a document."""

MAX_KEY_CHARS = 2_000
"""Characters of a key. An index of PostgreSQL takes 2,704 bytes."""

PAGE_DOCUMENTS = 50
"""Documents that one statement reads. A document may be large."""

PAGE_KEYS = 1_000
"""Keys that one statement reads, and documents that one transaction deletes."""

MIN_BYTES_PER_S = 1_000_000
"""Bytes that a database writes in a second at the least: the time limit of a large write."""

_SEPARATOR, _AFTER_SEPARATOR, _ESCAPE = "\x1f", "\x20", "\x1e"
_NEXT = "\x01"
"""Added to a key, it makes the smallest key after it: no key has this character."""

_CONTROL = re.compile(r"[\x00-\x1f]")


class Span(NamedTuple):
    """A range of keys: from `start` up to `stop`, which is not part of it."""

    start: str
    stop: str


def key(*parts: str) -> str:
    """A key of these parts. Keys are in the order of their parts. Raises InvalidInput."""
    joined = _SEPARATOR.join(_escaped(part) for part in parts)
    if len(joined.encode()) > MAX_KEY_CHARS:
        raise InvalidInput(
            f"the key {joined[:60]!r}… of a document has more than {MAX_KEY_CHARS:,} bytes; use shorter names"
        )
    return joined


def span(*parts: str) -> Span:
    """All keys that begin with these parts and have more."""
    start = key(*parts)
    return Span(start + _SEPARATOR, start + _AFTER_SEPARATOR)


def parts_of(key: str) -> list[str]:
    """The parts of a key."""
    return [re.sub(_ESCAPE + "(.)", lambda m: chr(ord(m[1]) - 0x40), part) for part in key.split(_SEPARATOR)]


def _escaped(part: str) -> str:
    return _CONTROL.sub(lambda m: _ESCAPE + chr(ord(m[0]) + 0x40), part)


class Collection:
    """The documents of one tenant and one collection."""

    def __init__(self, database: Database, tenant: str, name: str) -> None:
        self._db, self._tenant, self._name = database, tenant, name
        self._values: dict[str, Any] = {"tenant": tenant, "collection": name}

    async def write(
        self, puts: Mapping[str, bytes], *, adds: Mapping[str, bytes] | None = None, drops: Sequence[str] = ()
    ) -> None:
        """Store documents, add those whose keys have none yet, and drop others, in one transaction. Raises InvalidInput."""
        written = {**puts, **(adds or {})}
        for key_, data in written.items():
            if len(data) > MAX_DOCUMENT_BYTES:
                raise InvalidInput(
                    f"a document of {self._name} has {len(data):,} bytes, more than the {MAX_DOCUMENT_BYTES:,} that the store takes; "
                    f"keep large data as an artifact (its key: {key_[:60]!r})"
                )
        timeout_s = 10 + sum(map(len, written.values())) / MIN_BYTES_PER_S
        if self._db.codec is not None and written:
            items = [self._item(key_, data) for key_, data in written.items()]
            sealed = await self._db.codec.sealed_documents(self._tenant, items)
            written = dict(zip(written, sealed, strict=True))

        async def job(connection: Connection) -> None:
            for key_ in sorted(written):  # in one order, so that two writers do not wait for each other
                name = "document_put" if key_ in puts else "document_add"
                await connection.run(name, timeout_s=timeout_s, key=key_, data=written[key_], **self._values)
            if drops:
                await connection.run("documents_drop", keys=sorted(drops), **self._values)

        if written or drops:
            await self._db.transact(job)

    async def read(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The documents under these keys, where there are any."""
        found: dict[str, bytes] = {}
        for at in range(0, len(keys), PAGE_DOCUMENTS):
            page = list(keys[at : at + PAGE_DOCUMENTS])
            found |= await self._opened(await self._db.fetch("documents", keys=page, **self._values))
        return found

    async def last(self, span: Span) -> tuple[str, bytes] | None:
        """The last document of a range."""
        rows = await self._db.fetch("documents_back", start=span.start, stop=span.stop, limit=1, **self._values)
        return next(iter((await self._opened(rows)).items()), None)

    async def scan(self, span: Span, *, back: bool = False) -> AsyncIterator[tuple[str, bytes]]:
        """All documents of a range, in the order of their keys, or from the last one on. They are read in pages."""
        start, stop = span
        name = "documents_back" if back else "documents_between"
        while True:
            rows = await self._db.fetch(name, start=start, stop=stop, limit=PAGE_DOCUMENTS, **self._values)
            for item in (await self._opened(rows)).items():
                yield item
            if len(rows) < PAGE_DOCUMENTS:
                return
            start, stop = (start, rows[-1][0]) if back else (rows[-1][0] + _NEXT, stop)

    async def keys(self, span: Span) -> AsyncIterator[str]:
        """The keys of a range, in their order. They are read in pages."""
        start = span.start
        while True:
            keys = await self.first_keys(Span(start, span.stop), PAGE_KEYS)
            for key_ in keys:
                yield key_
            if len(keys) < PAGE_KEYS:
                return
            start = keys[-1] + _NEXT

    async def first_keys(self, span: Span, limit: int) -> list[str]:
        """The first keys of a range."""
        values = {"start": span.start, "stop": span.stop, "limit": limit, **self._values}
        return [row[0] for row in await self._db.fetch("document_keys", **values)]

    async def drop(self, *spans: Span) -> None:
        """Delete all documents of these ranges, one range after the other, in transactions of a bounded size. A call that was cut off is
        made again."""
        for span_ in spans:
            page: list[str] = []
            async for key_ in self.keys(span_):
                page.append(key_)
                if len(page) == PAGE_KEYS:
                    await self.write({}, drops=page)
                    page = []
            await self.write({}, drops=page)

    def _item(self, key_: str, data: bytes) -> Item:
        return document_item(self._name, key_, data)

    async def _opened(self, rows: Sequence[Any]) -> dict[str, bytes]:
        found = {row[0]: bytes(row[1]) for row in rows}
        if self._db.codec is None:
            return found
        opened = await self._db.codec.open([self._item(key_, data) for key_, data in found.items()])
        for key_, before, data in zip(found, found.values(), opened, strict=True):
            if data is not before and data[:1] == UNREADABLE:
                raise unreadable(data, f"a document of {self._name}, {key_[:60]!r}")
        return dict(zip(found, opened, strict=True))


def document_item(collection: str, key_: str, data: bytes) -> Item:
    """A document as an item of the codec."""
    return Item(f"document {collection}", document_place(collection, key_), data)


class Documents(OverDatabase):
    """The documents of all tenants."""

    def of(self, collection: str, tenant: str | None = None) -> Collection:
        """The documents of a collection and of a tenant; without one, those that belong to none."""
        return Collection(self._db, tenant or "", collection)

    async def seal(self) -> int:
        """Seal documents that were written before encryption was on; how many that were. This process has a codec."""
        codec = self._db.codec
        assert codec is not None
        count, after = 0, {"tenant": "", "collection": "", "key": ""}
        while places := await self._db.fetch("documents_after", limit=PAGE_KEYS, **after):
            for tenant, collection, key_ in places:
                after = {"tenant": tenant, "collection": collection, "key": key_}
                for _, data in await self._db.fetch("documents", **{**after, "keys": [key_]}):
                    if not is_sealed(data):
                        (sealed,) = await codec.sealed_documents(tenant, [document_item(collection, key_, data)])
                        count += len(await self._db.write("document_seal", data=sealed, seen=data, **after))
        return count
