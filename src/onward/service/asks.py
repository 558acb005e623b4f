"""Lists the open questions and approvals of tasks in pages, and reads one of them. A part of the service.

A page is bounded in number and in bytes. A question or an approval for which it has no room is shown without its large values, and
`left_out` names them. Such an approval has no hash and no digest: a decision names what was shown, and it was not shown.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

from onward.artifacts.keeper import BeforeLoad
from onward.core import approval, wire
from onward.core import record as r
from onward.core.asks import ASKS, AskedIn, read_head
from onward.core.page import Page
from onward.core.sealed import CODECS
from onward.core.task import Reason, Task
from onward.core.views import Ask
from onward.errors import BadSetting, NotFound
from onward.service.timeline import asking_turn
from onward.service.votes import Votes
from onward.store.port import listing as port
from onward.store.port.core import Store
from onward.store.port.listing import MAX_ASKS, PAGE_BYTES

MAX_DESCENDANTS = 100
"""Tasks below one that are searched for questions and approvals."""

SLICE_ASKS = 20
"""Questions and approvals that are made of their records at once; other requests go on in between."""

_KINDS: Final = {None: None, "question": r.QUESTION, "approval": r.APPROVAL}
_ASK_ID: Final = re.compile(r"([!-~]+)\.([0-9]{1,15})(?:\.e[0-9a-f]{8})?")
"""An id that the database can look up: the task and the number of the record. The id of an event after a restore has the epoch behind them."""

_FIELDS: Final = {
    "until": ("expires_at",),
    "default": ("default",),
    "risk": ("risk",),
    "what": ("text",),
    "question": ("text",),
    "rule": ("rule", "votes"),
    "choices": ("choices",),
    "effect": ("effect",),
    "description": ("description",),
    "data": ("data", "tool", "arguments"),
}
"""The fields of an Ask that come from a field of the record."""

_OF_QUESTIONS: Final = frozenset({"text", "choices", "expires_at"})
"""Those that a question has."""


class Asks:
    """Reads questions and approvals."""

    def __init__(self, store: Store, votes: Votes) -> None:
        self._store, self._votes = store, votes

    async def list(
        self,
        kind: str | None = None,
        *,
        whose: str | None = None,
        limit: int = MAX_ASKS,
        cursor: str | None = None,
    ) -> Page[Ask]:
        """A page of the open questions and approvals, and the cursor for the next page (`next`); `whose` as for `Service.get`. The pages
        follow the order in which the tasks were submitted; in a page the oldest question is the first. All of a page has about `PAGE_BYTES`.
        A page may have few or none, and a cursor."""
        bounds = _bounds(kind, limit, cursor)
        return await self._shown(await self._store.listing.asks(whose=whose, **bounds))

    async def of(
        self, task: Task, *, limit: int = MAX_ASKS, cursor: str | None = None, page_bytes: int = PAGE_BYTES
    ) -> Page[Ask]:
        """The same of a task, and, where it waits for its children, of the tasks below it."""
        bounds = _bounds(None, limit, cursor)
        ids, parents = [task.task_id], [task.task_id] if task.reason == Reason.CHILD else []
        while parents and len(ids) <= MAX_DESCENDANTS:
            below = await self._store.listing.unfinished_below(parents, MAX_DESCENDANTS + 1 - len(ids))
            ids += [child for child, _ in below]
            parents = [child for child, reason in below if reason == Reason.CHILD]
        return await self._shown(await self._store.listing.asks(ids, page_bytes=page_bytes, **bounds))

    async def of_one(self, task_id: str, kind: str, cursor: str | None = None) -> Page[Ask]:
        """A page of the open questions or approvals of one task alone."""
        return await self._shown(await self._store.listing.asks([task_id], **_bounds(kind, MAX_ASKS, cursor)))

    async def get(self, ask_id: str, whose: str | None = None, before_load: BeforeLoad | None = None) -> Ask:
        """A question or an approval, open or not. Raises NotFound, also where its task is not of this tenant."""
        ask, _ = await self.with_task(ask_id, whose, before_load)
        return (await self._votes.read([ask]))[0]

    async def asked_in(self, ask: Ask) -> AskedIn:
        """The turn of the agent that asked for an approval."""
        call = ask.data.get("call") if isinstance(ask.data, dict) and ask.kind == "approval" else None
        asked = await asking_turn(self._store, ask.task_id, ask.seq, call) if isinstance(call, str) else None
        return AskedIn(None, None) if asked is None else AskedIn(asked.turn, asked.text)

    async def with_task(
        self, ask_id: str, whose: str | None = None, before_load: BeforeLoad | None = None
    ) -> tuple[Ask, Task]:
        """The same without its votes, and its task."""
        match = _ASK_ID.fullmatch(ask_id)
        task_id, seq = ("", 0) if match is None else (match[1], int(match[2]))
        task = await self._store.get(task_id, whose, 0) if task_id else None
        if task is not None and before_load is not None:
            await before_load(await self._store.listing.ask_size(task_id, seq))
        records = await self._store.journal(task_id, seq - 1, 1) if task is not None else []
        if task is None or not records or records[0].kind not in ASKS or records[0].dropped:
            raise NotFound(
                f"there is no question or approval {ask_id!r}; `onward approvals` and `onward questions` list them"
            )
        return _ask(task_id, task.task, seq, records[0].kind, records[0].value, records[0].at), task

    async def _shown(self, rows: Page[port.Ask]) -> Page[Ask]:
        """Without those that have expired and whose task has not recorded it yet."""
        asks: list[Ask] = []
        for begin in range(0, len(rows), SLICE_ASKS):
            shown = [(_shown(row), row.now) for row in rows[begin : begin + SLICE_ASKS]]
            asks += [ask for ask, now in shown if ask.expires_at is None or now < ask.expires_at]
            await asyncio.sleep(0)
        return Page(await self._votes.read(asks, PAGE_BYTES), rows.next)


def _bounds(kind: str | None, limit: int, cursor: str | None) -> dict[str, Any]:
    """The bounds of a page, checked."""
    if kind not in _KINDS:
        raise BadSetting("kind", kind, "'approval' or 'question'")
    if not 1 <= limit <= MAX_ASKS:
        raise BadSetting("limit", limit, f"between 1 and {MAX_ASKS}")
    match = ("", "", "0") if cursor is None else _ASK_ID.fullmatch(cursor)
    if match is None:
        raise BadSetting("cursor", str(cursor)[:80], "`next` of the page before")
    return {"kind": _KINDS[kind], "limit": limit, "after": (match[1], int(match[2]))}


def _shown(row: port.Ask) -> Ask:
    """A question or an approval of a list."""
    if row.whole and row.data[:1] not in CODECS:  # else it is sealed, and this process cannot open it
        return _ask(row.task_id, row.task, row.seq, row.kind, wire.decode(row.data), row.at)
    fields, left_out = read_head(b"" if row.whole else row.data)
    names = {name for field in left_out for name in _FIELDS.get(field, ())}
    names = names & _OF_QUESTIONS if row.kind == r.QUESTION else (names - {"choices"}) | {"hash", "digest"}
    return _ask(row.task_id, row.task, row.seq, row.kind, fields, row.at, tuple(sorted(names)))


def _ask(
    task_id: str,
    task: str,
    seq: int,
    kind: str,
    payload: dict[str, Any],
    at: float,
    left_out: tuple[str, ...] = (),
) -> Ask:
    question, expires_at, data = kind == r.QUESTION, payload.get("until"), payload.get("data")
    tool_call = data if isinstance(data, dict) and data.keys() - {"metadata"} == {"tool", "call", "arguments"} else None
    named = not question and "digest" not in left_out
    return Ask(
        id=f"{task_id}.{seq}",
        task_id=task_id,
        task=task,
        kind="question" if question else "approval",
        text=payload.get("question" if question else "what", ""),
        risk=payload.get("risk"),
        data=data,
        choices=tuple(payload.get("choices", ())),
        asked_at=at,
        expires_at=expires_at,
        default=None if question or expires_at is None else payload.get("default", "deny"),
        tool=None if tool_call is None else str(tool_call["tool"]),
        arguments=None if tool_call is None else dict(tool_call["arguments"]),
        hash=wire.fingerprint([task_id, seq, payload.get("what"), payload.get("risk"), data]) if named else None,
        digest=approval.digest(f"{task_id}.{seq}", task, payload) if named else None,
        rule=None if question else approval.read_rule(payload),
        description=payload.get("description"),
        effect=payload.get("effect"),
        left_out=left_out,
    )
