"""Intakes: the dead letters of messages that could not become tasks, and the reports of the processes that receive messages."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

from onward.core import wire
from onward.core.audit import AuditEvent
from onward.core.ids import first_id
from onward.core.page import Page
from onward.core.sealed import CODECS, ERASED, unreadable
from onward.errors import DataErased, EncryptionKeyMissing, PayloadDamaged
from onward.store.shared.audit import Audit
from onward.store.shared.database import Connection, Database, OverDatabase, seen_by

AFTER_LAST = "\x7f"
"""Greater than the id of every dead letter."""

MAX_CHANGED = 1000
"""Dead letters that one transaction changes."""

PAGE_INTAKES = 1000
"""Intakes of a page."""

MAX_REPORTS = 1000
"""Reports of processes that one page has."""

FORGET_S, FORGET_LAST_S = 3600.0, 7 * 86400.0
"""Seconds after which the report of a process that stopped, or that is silent while others report, is deleted; and the last report of an
intake."""


class NewLetter(NamedTuple):
    """A message that could not become a task."""

    id: str
    intake: str
    identity: str
    tenant: str | None
    reason: str
    position: str
    sent_id: str
    size: int
    """The bytes of the body as it came."""
    headers: dict[str, str]
    body: bytes
    """The body, or its beginning where it is too large for the store."""


class LetterRow(NamedTuple):
    """A dead letter without its data."""

    id: str
    intake: str
    identity: str
    tenant: str | None
    reason: str
    position: str
    sent_id: str
    size: int
    attempts: int
    at: float
    redrive_at: float | None
    erased: bool = False
    """Whether the data was erased; the reason then is empty."""


class Redriven(NamedTuple):
    """A dead letter that is to be tried again."""

    id: str
    identity: str
    position: str
    sent_id: str
    size: int
    headers: dict[str, str]
    body: bytes
    at: float
    """When it became a dead letter."""


class IntakeReport(NamedTuple):
    """What a process says about one of its intakes."""

    name: str
    process: str
    source: str
    target: str
    tenant: str | None
    state: str
    detail: str
    taken: int
    dead: int
    rate: float
    lag: int | None
    started_at: float = 0.0
    seen_at: float = 0.0
    silent_s: float = 0.0
    """Seconds since it was seen last."""


class Intakes(OverDatabase):
    """Dead letters, and reports about intakes. (See `seen_by` for `whose`.)"""

    def __init__(self, database: Database, audit: Audit) -> None:
        super().__init__(database)
        self._audit = audit

    # ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────

    async def bury(self, letters: Sequence[NewLetter]) -> None:
        """Add dead letters. A message that has one already keeps it, with the new reason."""
        datas = [wire.encode(letter.headers) + b"\n" + letter.body for letter in letters]
        reasons = await self._sealed([(item.intake, item.identity, item.tenant, item.reason) for item in letters])
        if (codec := self._db.codec) is not None:
            items = [(letter.id, letter.tenant, data) for letter, data in zip(letters, datas, strict=True)]
            datas = await codec.sealed_letters(items)
        values = [
            letter._asdict() | {"data": data, "reason": reason}
            for letter, data, reason in zip(letters, datas, reasons, strict=True)
        ]
        await self._db.write_many("letter_add", sorted(values, key=lambda value: value["identity"]))

    async def letters(
        self, *, intake: str | None = None, before: str = AFTER_LAST, limit: int, whose: str | None = None
    ) -> list[LetterRow]:
        """Dead letters below an id, the newest first."""
        statement, values = ("letters", {}) if intake is None else ("letters_in", {"intake": intake})
        rows = await self._db.fetch(statement, before=before, limit=limit, **values, **seen_by(whose))
        return await self._rows(rows)

    async def letter(
        self, letter_id: str, whose: str | None = None
    ) -> tuple[LetterRow, dict[str, str] | None, bytes | None] | None:
        """A dead letter with its headers and its body, which are None where they were erased. Raises EncryptionKeyMissing and
        PayloadDamaged."""
        rows = await self._db.fetch("letter", id=letter_id, **seen_by(whose))
        datas = await self._db.fetch("letter_data", ids=[letter_id]) if rows else []
        if not datas:
            return None
        (row,) = await self._rows(rows)
        try:
            ((headers, body),) = await self._opened([(letter_id, datas[0][1])])
        except DataErased:
            return row._replace(erased=True), None, None
        return row, headers, body

    async def exists(self, letter_id: str, whose: str | None = None) -> bool:
        """Whether there is such a dead letter."""
        return bool(await self._db.fetch("letter", id=letter_id, **seen_by(whose)))

    async def counts(self, names: Sequence[str], whose: str | None = None) -> dict[str, tuple[int, int]]:
        """How many dead letters each of these intakes has, and how many of them are to be tried again."""
        values = {"names": list(names)} | seen_by(whose)
        rows = await self._db.fetch("letter_counts", **values)
        redriven = dict(await self._db.fetch("letter_counts_redriven", **values))
        return {intake: (count, redriven.get(intake, 0)) for intake, count in rows}

    async def count(self, intake: str, most: int) -> int:
        """How many dead letters an intake has, counted up to a number."""
        return int((await self._db.fetch("letter_crowd", intake=intake, most=most))[0][0])

    async def aged(self, before: float, most: int) -> dict[str, int]:
        """How many dead letters from before this time each intake has; `most` of them are counted, the oldest first."""
        return dict(await self._db.fetch("letters_aged", until=first_id(before), most=most))

    async def redrive(
        self, event: AuditEvent, first: str, last: str, *, intake: str | None = None, whose: str | None = None
    ) -> list[str]:
        """Ask for dead letters with ids from `first` to `last` to be tried again, at most `MAX_CHANGED`, the oldest first; their ids, in
        order."""
        statement = "letters_redrive" if intake is None else "letters_redrive_in"
        return await self._change(statement, event, first, last, intake, whose)

    async def drop(
        self, event: AuditEvent, first: str, last: str, *, intake: str | None = None, whose: str | None = None
    ) -> list[str]:
        """Delete dead letters, chosen as for `redrive`; their ids, in order."""
        statement = "letters_drop" if intake is None else "letters_drop_in"
        return await self._change(statement, event, first, last, intake, whose)

    async def _change(
        self, statement: str, event: AuditEvent, first: str, last: str, intake: str | None, whose: str | None
    ) -> list[str]:
        values: dict[str, Any] = {"first": first, "last": last, "limit": MAX_CHANGED} | seen_by(whose)
        if intake is not None:
            values["intake"] = intake

        async def job(connection: Connection) -> list[str]:
            rows = await connection.fetch(statement, **values)
            by_tenant = collections.Counter([tenant for _, tenant in rows])
            for tenant, count in sorted(by_tenant.items(), key=lambda item: item[0] or ""):
                data = {**event.data, "letters": count}
                await self._audit.append_within(connection, event._replace(tenant=tenant, data=data))
            return sorted([letter_id for letter_id, _ in rows])

        return await self._db.transact(job)

    async def prune(self, before: float, age: float, limit: int) -> int:
        """Delete so many dead letters that are at least `age` seconds old, the oldest first; how many that were. `before` is the time of
        that age by the clock of this process."""
        values: dict[str, Any] = {"until": first_id(before), "age": age, "limit": limit}
        return await self._db.transact(lambda connection: connection.run("letters_prune", **values))

    async def take(self, intake: str, limit: int, lease: float) -> list[Redriven]:
        """Take dead letters that are to be tried again. Other processes leave them alone for `lease` seconds. A letter whose data cannot be
        opened is dead again."""
        rows = await self._db.write("letters_take", intake=intake, limit=limit, lease=lease)
        taken: list[Redriven] = []
        for letter_id, identity, position, sent_id, size, data, at in sorted(rows):
            try:
                ((headers, body),) = await self._opened([(letter_id, data)])
            except (DataErased, EncryptionKeyMissing, PayloadDamaged) as error:
                await self.still_dead(letter_id, str(error))
            else:
                taken.append(Redriven(letter_id, identity, position, sent_id, size, headers, body, at))
        return taken

    async def still_dead(self, letter_id: str, reason: str) -> None:
        """A dead letter was tried again, and could not become a task."""
        for row in await self._db.fetch("letter", id=letter_id, **seen_by(None)):
            letter = LetterRow(*row)
            (sealed,) = await self._sealed([(letter.intake, letter.identity, letter.tenant, reason)])
            await self._db.write("letter_still_dead", id=letter_id, reason=sealed)

    async def of_messages(self, intake: str, identities: Sequence[str]) -> list[str]:
        """The ids of the dead letters of these messages."""
        return [row[0] for row in await self._db.fetch("letters_of", intake=intake, identities=list(identities))]

    async def remove(self, ids: Sequence[str]) -> None:
        """Delete the dead letters of messages that were received after all."""
        await self._db.write("letters_remove", ids=list(ids))

    async def _sealed(self, reasons: Sequence[tuple[str, str, str | None, str]]) -> list[bytes]:
        """Reasons as they are stored."""
        plain = [
            (intake, identity, tenant, reason.encode("utf-8", "replace"))
            for intake, identity, tenant, reason in reasons
        ]
        codec = self._db.codec
        return [item[3] for item in plain] if codec is None else await codec.sealed_reasons(plain)

    async def _rows(self, rows: Sequence[Any]) -> list[LetterRow]:
        """Dead letters as they are stored, with their reasons opened. A reason that cannot be opened says why."""
        sealed = [(row[1], row[2], row[4]) for row in rows]
        codec = self._db.codec
        datas = [data for *_, data in sealed] if codec is None else await codec.reasons(sealed)
        letters = []
        for row, data in zip(rows, datas, strict=True):
            letter, erased = LetterRow(*row), data.startswith(ERASED)
            if erased:
                reason = ""
            elif data[:1] in CODECS:
                reason = str(unreadable(data, f"the reason of dead letter {letter.id}"))
            else:
                reason = data.decode()
            letters.append(letter._replace(reason=reason, erased=erased))
        return letters

    async def _opened(self, letters: Sequence[tuple[str, bytes]]) -> list[tuple[dict[str, str], bytes]]:
        codec = self._db.codec
        datas = [data for _, data in letters] if codec is None else await codec.letters(letters)
        opened = []
        for (letter_id, _), data in zip(letters, datas, strict=True):
            if data[:1] in CODECS:
                raise unreadable(data, f"dead letter {letter_id}")
            headers, _, body = data.partition(b"\n")
            opened.append((wire.decode(headers), body))
        return opened

    # ── reports ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def report(self, report: IntakeReport) -> None:
        """Say how an intake of this process does. Old reports are deleted."""

        async def job(connection: Connection) -> None:
            await connection.run("intake_report", **report._asdict())
            await connection.run("intakes_forget", age=FORGET_S, last_age=FORGET_LAST_S)

        await self._db.transact(job)

    async def names(self, whose: str | None = None, *, after: str = "", limit: int = PAGE_INTAKES) -> list[str]:
        """The names, after one, of intakes that a process reported or that have dead letters."""
        return [row[0] for row in await self._db.fetch("intake_names", after=after, limit=limit, **seen_by(whose))]

    async def reports(self, names: Sequence[str], whose: str | None = None) -> Page[IntakeReport]:
        """Reports of processes about these intakes, by the name of the intake: of each intake all, and `MAX_REPORTS` together. Where
        there are more, `next` is the last intake whose reports are here; an intake that has more by itself is cut."""
        rows = await self._db.fetch("intakes", names=list(names), limit=MAX_REPORTS + 1, **seen_by(whose))
        reports = [IntakeReport(*row) for row in rows]
        if len(reports) <= MAX_REPORTS:
            return Page(reports)
        complete = [report for report in reports if report.name < reports[-1].name] or reports[:MAX_REPORTS]
        return Page(complete, complete[-1].name)

    async def sources(self) -> list[str]:
        """The places that processes receive from, `MAX_REPORTS` at most."""
        return [row[0] for row in await self._db.fetch("intake_sources", limit=MAX_REPORTS)]
