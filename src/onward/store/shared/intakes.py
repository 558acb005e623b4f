"""Intakes: the dead letters of messages that could not become tasks, and the reports of the processes that receive messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from onward.core import wire
from onward.core.audit import AuditEvent
from onward.core.sealed import CODECS, unreadable
from onward.store.shared.audit import Audit
from onward.store.shared.database import Connection, Database, OverDatabase, seen_by

AFTER_LAST = "\x7f"
"""Greater than the id of every dead letter."""

MAX_CHANGED = 1000
"""Dead letters that one transaction changes."""

MAX_REPORTS = 1000
"""Reports of processes that one list has."""

FORGET_S = 3600.0
"""Seconds after which the report of a silent process is deleted."""


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


class Redriven(NamedTuple):
    """A dead letter that is to be tried again."""

    id: str
    identity: str
    position: str
    sent_id: str
    size: int
    headers: dict[str, str]
    body: bytes


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


class Intakes(OverDatabase):
    """Dead letters, and reports about intakes. (See `seen_by` for `whose`.)"""

    def __init__(self, database: Database, audit: Audit) -> None:
        super().__init__(database)
        self._audit = audit

    # ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────

    async def bury(self, letters: Sequence[NewLetter]) -> None:
        """Add dead letters. A message that has one already keeps it, with the new reason."""
        datas = [wire.encode(letter.headers) + b"\n" + letter.body for letter in letters]
        if (codec := self._db.codec) is not None:
            items = [(letter.id, letter.tenant, data) for letter, data in zip(letters, datas, strict=True)]
            datas = await codec.sealed_letters(items)
        values = [letter._asdict() | {"data": data} for letter, data in zip(letters, datas, strict=True)]
        await self._db.write_many("letter_add", sorted(values, key=lambda value: value["identity"]))

    async def letters(
        self, *, intake: str | None = None, before: str = AFTER_LAST, limit: int, whose: str | None = None
    ) -> list[LetterRow]:
        """Dead letters below an id, the newest first."""
        filters = {"intake": intake, "any_intake": intake is None, "before": before, "limit": limit}
        return [LetterRow(*row) for row in await self._db.fetch("letters", **filters, **seen_by(whose))]

    async def letter(self, letter_id: str, whose: str | None = None) -> tuple[LetterRow, dict[str, str], bytes] | None:
        """A dead letter with its headers and its body. Raises DataErased, EncryptionKeyMissing, PayloadDamaged."""
        rows = await self._db.fetch("letter", id=letter_id, **seen_by(whose))
        datas = await self._db.fetch("letter_data", ids=[letter_id]) if rows else []
        if not datas:
            return None
        ((headers, body),) = await self._opened([(letter_id, datas[0][1])])
        return LetterRow(*rows[0]), headers, body

    async def counts(self, whose: str | None = None) -> dict[str, tuple[int, int]]:
        """How many dead letters each intake has, and how many of them are to be tried again."""
        rows = await self._db.fetch("letter_counts", **seen_by(whose))
        return {intake: (count, redriven) for intake, count, redriven in rows}

    async def count(self, intake: str, most: int) -> int:
        """How many dead letters an intake has, counted up to a number."""
        return int((await self._db.fetch("letter_crowd", intake=intake, most=most))[0][0])

    async def redrive(
        self, event: AuditEvent, *, letter: str | None = None, intake: str | None = None, whose: str | None = None
    ) -> int:
        """Ask for dead letters to be tried again: one, or those of an intake, at most `MAX_CHANGED`; how many that were."""
        return await self._change("letters_redrive", event, letter, intake, whose)

    async def drop(
        self, event: AuditEvent, *, letter: str | None = None, intake: str | None = None, whose: str | None = None
    ) -> int:
        """Delete dead letters: one, or those of an intake, at most `MAX_CHANGED`; how many that were."""
        return await self._change("letters_drop", event, letter, intake, whose)

    async def _change(
        self, statement: str, event: AuditEvent, letter: str | None, intake: str | None, whose: str | None
    ) -> int:
        filters: dict[str, Any] = {"id": letter, "any_id": letter is None, "limit": MAX_CHANGED}
        filters |= {"intake": intake, "any_intake": intake is None} | seen_by(whose)

        async def job(connection: Connection) -> int:
            count = len(await connection.fetch(statement, **filters))
            if count:
                await self._audit.append_within(connection, event._replace(data={**event.data, "letters": count}))
            return count

        return await self._db.transact(job)

    async def take(self, intake: str, limit: int, lease: float) -> list[Redriven]:
        """Take dead letters that are to be tried again. Other processes leave them alone for `lease` seconds. A letter whose data cannot be
        opened is dead again."""
        rows = await self._db.write("letters_take", intake=intake, limit=limit, lease=lease)
        taken: list[Redriven] = []
        for letter_id, identity, position, sent_id, size, data in rows:
            try:
                ((headers, body),) = await self._opened([(letter_id, data)])
            except Exception as error:
                await self.still_dead(letter_id, str(error))
            else:
                taken.append(Redriven(letter_id, identity, position, sent_id, size, headers, body))
        return taken

    async def still_dead(self, letter_id: str, reason: str) -> None:
        """A dead letter was tried again, and could not become a task."""
        await self._db.write("letter_still_dead", id=letter_id, reason=reason)

    async def of_messages(self, intake: str, identities: Sequence[str]) -> list[str]:
        """The ids of the dead letters of these messages."""
        return [row[0] for row in await self._db.fetch("letters_of", intake=intake, identities=list(identities))]

    async def remove(self, ids: Sequence[str]) -> None:
        """Delete the dead letters of messages that were received after all."""
        await self._db.write("letters_remove", ids=list(ids))

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
        """Say how an intake of this process does. Reports of processes that have been silent for an hour are deleted."""

        async def job(connection: Connection) -> None:
            await connection.run("intake_report", **report._asdict())
            await connection.run("intakes_forget", age=FORGET_S)

        await self._db.transact(job)

    async def reports(self, whose: str | None = None) -> list[IntakeReport]:
        """The reports of all processes, by the name of the intake."""
        rows = await self._db.fetch("intakes", limit=MAX_REPORTS, **seen_by(whose))
        return [IntakeReport(*row) for row in rows]
