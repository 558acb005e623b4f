"""Intakes: how their processes do, and the dead letters of messages that could not become tasks. A part of the service."""

from __future__ import annotations

import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, cast

from onward.core.audit import AuditEvent
from onward.core.caller import ANYBODY, Caller
from onward.core.clock import Clock
from onward.core.page import Page, check_limit, every_item
from onward.core.text import count
from onward.core.view_json import from_row
from onward.core.views import Check, DeadLetter, DeadLetterContent, Intake, IntakeProcess, IntakeState
from onward.errors import NotFound, UsageError
from onward.store.port.core import Store
from onward.store.shared.intakes import AFTER_LAST, MAX_CHANGED, PAGE_INTAKES, IntakeReport, LetterRow

log = logging.getLogger("onward.intake")

SILENT_S = 20.0
"""Seconds without a report after which a process counts as silent. A process reports every five seconds."""

LETTER_KEEP_S = 30 * 86400.0
"""Seconds for which a dead letter is kept."""

OLD_LETTER_S = 86400.0
"""Seconds after which `onward doctor` notes a dead letter."""

MAX_CHECKED = 100
"""Intakes that `onward doctor` checks, by name."""

MAX_PAGE = 1000
MAX_BODY_BYTES = 262_144
"""Bytes of the body of a dead letter that a view has, unless the caller wants more."""

MAX_HEADER_BYTES = 65_536
"""Bytes of the headers of a dead letter that a view has."""

BEST_FIRST: tuple[IntakeState, ...] = ("running", "waiting", "away", "stopped", "silent")

DeadLetterList = Sequence[DeadLetter]
IntakeList = Sequence[Intake]
"""Aliases for classes that have a verb named `list`, or `intakes`."""


_Change = Callable[..., Awaitable[list[str]]]
"""`redrive` or `drop` of the store."""


class Intakes:
    """Shows how intakes do. (`whose` as for `Service.get`.)"""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def page(
        self, whose: str | None = None, *, limit: int = PAGE_INTAKES, cursor: str | None = None
    ) -> Page[Intake]:
        """A page of the intakes by name: those of which a process reported within the last week, and those that have dead letters. `next`
        is the cursor of the next page. The reports of a page are a thousand at most, so it may have fewer intakes than `limit`."""
        check_limit(limit, PAGE_INTAKES)
        names = await self._store.intakes.names(whose, after=cursor or "", limit=limit)
        full = len(names) == limit
        rows = await self._store.intakes.reports(names, whose)
        if rows.next is not None:
            full, names = True, [name for name in names if name <= rows.next]
        reports: dict[str, list[IntakeReport]] = {}
        for report in rows:
            reports.setdefault(report.name, []).append(report)
        letters = await self._store.intakes.counts(names, whose)
        intakes = [_intake(name, reports.get(name, []), *letters.get(name, (0, 0))) for name in names]
        return Page(intakes, names[-1] if names and full else None)

    async def list(self, whose: str | None = None) -> IntakeList:
        """The intakes of all pages, by name."""
        return await every_item(lambda cursor: self.page(whose, cursor=cursor))

    async def checks(self) -> Sequence[Check]:
        """The checks of `onward doctor`: intakes that no process receives, and old dead letters."""
        page = await self.page(limit=MAX_CHECKED)
        checks = [_check(intake) for intake in page if intake.processes]
        if page.next is not None:
            checks.append(Check("intakes", None, f"those after {page.next} are not checked here: onward intakes"))
        aged = await self._store.intakes.aged(self._clock.now() - OLD_LETTER_S, MAX_PAGE)
        if aged:
            total = sum(aged.values())
            letters = f"{total:,} or more dead letters" if total >= MAX_PAGE else count(total, "dead letter")
            some = ", ".join(f"{number:,} of {name}" for name, number in sorted(aged.items())[:5])
            detail = f"{letters} older than a day ({some}): onward dead, then onward dead redrive or onward dead drop"
            checks.append(Check("dead letters", None, detail))
        return checks


class DeadLetters:
    """Lists dead letters, shows them, asks for them to be tried again, and deletes them. (`whose` as for `Service.get`.)"""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def list(
        self, intake: str | None = None, *, limit: int = 100, cursor: str | None = None, whose: str | None = None
    ) -> tuple[DeadLetterList, str | None]:
        """Dead letters of one intake or of all, newest first, and the cursor for the next page."""
        check_limit(limit, MAX_PAGE)
        if cursor is not None and not _is_id(cursor):
            raise UsageError(f"{cursor!r:.40} is no cursor of a list of dead letters; use `next` of the page before")
        before = AFTER_LAST if cursor is None else cursor
        rows = await self._store.intakes.letters(intake=intake, before=before, limit=limit + 1, whose=whose)
        return [from_row(DeadLetter, row) for row in rows[:limit]], rows[limit - 1].id if len(rows) > limit else None

    async def get(self, letter_id: str, *, most: int = MAX_BODY_BYTES, whose: str | None = None) -> DeadLetterContent:
        """A dead letter with its headers and the first `most` bytes of its body. Raises NotFound, EncryptionKeyMissing and
        PayloadDamaged."""
        stored = await self._store.intakes.letter(letter_id, whose) if _is_id(letter_id) else None
        if stored is None:
            raise _unknown(letter_id)
        return _content(*stored, most)

    async def check_exists(self, letter_id: str, whose: str | None = None) -> None:
        """Raises NotFound."""
        if not _is_id(letter_id) or not await self._store.intakes.exists(letter_id, whose):
            raise _unknown(letter_id)

    async def redrive(
        self,
        letter_id: str | None = None,
        *,
        intake: str | None = None,
        all: bool = False,  # noqa: A002 -- the name in every interface
        whose: str | None = None,
        by: Caller = ANYBODY,
    ) -> int:
        """Try again one dead letter, those of an intake, or all; how many that were. The intake does it within a second: a letter that
        becomes a task is deleted, another one stays, with its new reason. Raises NotFound."""
        return await self._change("redrive_letters", self._store.intakes.redrive, letter_id, intake, all, whose, by)

    async def drop(
        self,
        letter_id: str | None = None,
        *,
        intake: str | None = None,
        all: bool = False,  # noqa: A002 -- the name in every interface
        whose: str | None = None,
        by: Caller = ANYBODY,
    ) -> int:
        """Delete one dead letter, those of an intake, or all, for good; how many that were. Raises NotFound."""
        return await self._change("drop_letters", self._store.intakes.drop, letter_id, intake, all, whose, by)

    async def _change(
        self,
        action: str,
        change: _Change,
        letter_id: str | None,
        intake: str | None,
        everything: bool,
        whose: str | None,
        by: Caller,
    ) -> int:
        if [letter_id is not None, intake is not None, everything].count(True) != 1:
            raise UsageError("name one dead letter by its id, or one intake, or say that you mean all of them")
        event = AuditEvent(action, letter_id or intake or "dead letters", None, by.id, by.name)
        if letter_id is not None:
            if not _is_id(letter_id) or not await change(event, letter_id, letter_id, whose=whose):
                raise _unknown(letter_id)
            return 1
        newest = await self._store.intakes.letters(intake=intake, limit=1, whose=whose)
        return await self._change_up_to(newest[0].id, event, change, intake, whose) if newest else 0

    async def _change_up_to(
        self,
        last: str,
        event: AuditEvent,
        change: _Change,
        intake: str | None,
        whose: str | None,
    ) -> int:
        """In slices, each letter once: one that is tried again and fails meanwhile is not tried a second time."""
        changed, first = 0, ""
        while ids := await change(event, first, last, intake=intake, whose=whose):
            changed += len(ids)
            if len(ids) < MAX_CHANGED:
                break
            first = ids[-1] + "!"  # sorts behind this id, and before the next one
        return changed

    async def prune(self) -> int:
        """Delete dead letters that are older than LETTER_KEEP_S, in slices; how many that were."""
        deleted = 0
        while True:
            before = self._clock.now() - LETTER_KEEP_S
            slice_ = await self._store.intakes.prune(before, LETTER_KEEP_S, MAX_CHANGED)
            deleted += slice_
            if slice_ < MAX_CHANGED:
                return deleted


def _is_id(text: str) -> bool:
    return text.isascii() and text.isalnum() and len(text) <= 64


def _unknown(letter_id: str) -> NotFound:
    return NotFound(f"there is no dead letter {letter_id!r:.80}; `onward dead` lists them")


# ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _intake(name: str, reports: Sequence[IntakeReport], dead: int, redriven: int) -> Intake:
    processes = tuple(from_row(IntakeProcess, report, state=_state(report)) for report in reports)
    if not reports:
        return Intake(name, "", "", None, "silent", "", 0, 0.0, None, dead, redriven, None, ())
    newest = max(reports, key=lambda report: report.seen_at)
    living = [process for process in processes if process.state not in {"silent", "stopped"}]
    best = min(processes, key=lambda process: (BEST_FIRST.index(process.state), -process.seen_at))
    return Intake(
        name=name,
        source=newest.source,
        target=newest.target,
        tenant=newest.tenant,
        state=best.state,
        detail=best.detail,
        taken=sum([process.taken for process in processes]),
        rate=sum([process.rate for process in living]),
        lag=max([process.lag for process in living if process.lag is not None], default=None),
        dead=dead,
        redriven=redriven,
        seen_at=newest.seen_at,
        processes=processes,
    )


def _state(report: IntakeReport) -> IntakeState:
    if report.state != "stopped" and report.silent_s > SILENT_S:
        return "silent"
    return cast("IntakeState", report.state)


def _check(intake: Intake) -> Check:
    name = f"intake {intake.name}"
    if intake.state == "silent":
        gone = f"{_processes(len(intake.processes))} died or cannot report"
        return Check(name, False, f"no process receives it, {gone}: onward intake MODULE:APP, or a worker, does")
    if intake.state == "stopped":
        return Check(name, None, "stopped: no process receives it; onward intake MODULE:APP, or a worker, does")
    waiting = "" if intake.lag is None else f", {count(intake.lag, 'message')} waiting at {intake.source}"
    if intake.state == "running":
        return Check(name, True, f"received by {_processes(_living(intake))}{waiting}")
    return Check(name, None if intake.state == "waiting" else False, f"{intake.state}: {intake.detail}{waiting}")


def _living(intake: Intake) -> int:
    return sum(process.state not in {"silent", "stopped"} for process in intake.processes)


def _processes(number: int) -> str:
    return f"{number:,} process" if number == 1 else f"{number:,} processes"


def _content(row: LetterRow, headers: dict[str, str] | None, body: bytes | None, most: int) -> DeadLetterContent:
    left_out: tuple[str, ...] = ()
    if headers is not None and sum([len(name) + len(value) for name, value in headers.items()]) > MAX_HEADER_BYTES:
        headers, left_out = None, ("headers",)
    shown: str | None = None
    encoding: Literal["text", "base64"] = "text"
    if body is not None:
        left_out += ("body",) if row.size > min(most, len(body)) else ()
        shown, encoding = _text(body[:most], cut=len(body) > most)
    more: dict[str, Any] = {"headers": headers or {}, "body": shown, "encoding": encoding, "left_out": left_out}
    return from_row(DeadLetterContent, row, **more)


def _text(body: bytes, *, cut: bool) -> tuple[str, Literal["text", "base64"]]:
    """Bytes as text where they are UTF-8, else in base 64. The last character of a cut text may be incomplete."""
    try:
        return body.decode(), "text"
    except UnicodeDecodeError as error:
        if cut and error.start >= len(body) - 3 and error.reason == "unexpected end of data":
            return body[: error.start].decode(), "text"
        return base64.b64encode(body).decode(), "base64"
