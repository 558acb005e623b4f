"""Forks: where a journal can be cut, and what a fork does again after the cut. Pure.

A fork begins with records 1…N of another task, its origin. It inherits the steps, and never has to undo them. So a journal cannot be cut
where something is open that belongs to the origin: an effect whose end is not known, a question to a person, a child, a saga that may have
to be undone, a lock, a cancel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from onward.core import record as r
from onward.core import wire
from onward.core.record import Record

SUBMIT = "submit "
"""The beginning of the name of a step that starts a child."""

ASKED_AGAIN = "[#fork]"
"""The beginning of the keys of approvals that a fork asks for again before it goes on. No part of a handler has such a name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Again:
    """Something that the fork will do although its origin has done it."""

    seq: int
    kind: str
    step: str
    effect: bool = False
    """Whether it is an effect that must not be repeated automatically: it was announced before it began."""


def slim(record: Record) -> Record:
    """A record with that of its payload which `Cuts` reads: so a journal with large payloads takes little memory."""
    if record.dropped:
        return record
    match record.kind:
        case r.MESSAGE:
            message = record.value
            decision = message["value"].get("decision") if isinstance(message["value"], dict) else None
            value = {"decision": decision} if message["value"] else None
            fields = {"n": message["n"], "kind": message["kind"], "name": message["name"], "value": value}
        case r.WAITED:
            fields = _only("n", record)
        case r.APPROVAL:
            fields = _only("default", record)
        case r.STEP_DONE if _names_child(record.key):
            result = record.value["result"]
            fields = {"result": result if isinstance(result, str) else None}
        case _:
            fields = {}
    return dataclasses.replace(record, data=wire.encode(fields))


@dataclasses.dataclass(slots=True)
class Cuts:
    """A journal, and where it can be cut. `children` are the ids of the tasks that it started."""

    records: Sequence[Record]
    children: frozenset[str] = frozenset()

    def why_not(self, at: int) -> str:
        """What is open after record `at`; empty when the journal can be cut there."""
        return next((why for seq, why in self._open() if seq == at), "there is no such record")

    def places(self) -> list[Record]:
        """The records after which it can be cut."""
        return [record for record, (_, why) in zip(self.records, self._open(), strict=True) if not why]

    def near(self, at: int) -> list[int]:
        """The nearest numbers below and above at which it can be cut."""
        fine = [record.seq for record in self.places()]
        return [seq for seq in fine if seq < at][-1:] + [seq for seq in fine if seq > at][:1]

    def inbox(self, at: int) -> int:
        """How many messages the task had read at record `at`."""
        return max(
            (record.value["n"] for record in self.records if record.seq <= at and record.kind == r.MESSAGE), default=0
        )

    def approved(self, at: int) -> list[int]:
        """The numbers of the approvals up to record `at` that were approved, by a person or by their default. A decision is for the task that
        asked, so a fork asks for them again."""
        requested: dict[str, Record] = {}
        messages: dict[int, Any] = {}
        approved: list[int] = []
        for record in self.records:
            if record.seq > at:
                break
            if record.kind == r.APPROVAL and not record.key.startswith(ASKED_AGAIN):
                requested[record.key] = record
            elif record.kind == r.MESSAGE:
                messages[record.value["n"]] = record.value["value"]
            elif record.kind == r.WAITED and (request := requested.pop(record.key, None)) is not None:
                default = {"decision": request.value.get("default")}
                if (messages.get(record.value.get("n"), default) or default).get("decision") == "approve":
                    approved.append(request.seq)
        return approved

    def again(self, at: int) -> list[Again]:
        """What the task did after record `at`: the fork does it again, if its handler comes there. Undos are left out: only a saga that fails
        is undone."""
        kinds = {
            r.STEP_DONE: "step",
            r.STEP_FAILED: "step",
            r.ANNOUNCED: "step",
            r.QUESTION: "question",
            r.APPROVAL: "approval",
        }
        repeated: dict[str, Again] = {}
        for record in self.records:
            if record.seq > at and record.kind in kinds and "/undo]" not in record.key:
                kind = "child" if _starts_child(record) else kinds[record.kind]
                repeated.setdefault(record.key, Again(record.seq, kind, record.key, record.kind == r.ANNOUNCED))
        return list(repeated.values())

    def started(self) -> set[str]:
        """The results of steps that may have started a child."""
        return {record.value["result"] for record in self.records if _starts_child(record)}

    def _open(self) -> Iterable[tuple[int, str]]:
        """For each record, what is open after it."""
        waits: dict[str, str] = {}
        sagas: dict[str, str] = {}
        running: dict[str, str] = {}
        gone = ""
        for record in self.records:
            key, name = record.key, repr(record.key)
            if number := record.dropped:
                gone = f"the records before checkpoint {number} were dropped"
            elif record.kind == r.CHECKPOINT:
                gone = ""
            match record.kind:
                case r.QUESTION | r.APPROVAL | r.CHILD:
                    waits[key] = f"it waits for {name}"
                case r.WAITED:
                    waits.pop(key, None)
                case r.ANNOUNCED:
                    waits[key] = f"the end of step {name} is not known yet"
                case r.STEP_DONE | r.STEP_FAILED:
                    waits.pop(key, None)
                    if _starts_child(record) and (child := record.value["result"]) in self.children:
                        running[child] = f"the child that {name} started has not ended"
                case r.MESSAGE if record.value["kind"] == "child":
                    running.pop(record.value["name"], None)
                case r.SAGA:
                    sagas[key] = f"it is inside the saga {name}"
                case r.SAGA_DONE | r.UNDONE | r.LOCK_LEFT:
                    sagas.pop(key, None)
                case r.LOCK_AWAITED | r.LOCK_TAKEN:
                    sagas[key] = f"it is inside the block of {name}"
                case r.CANCEL | r.DEADLINE:
                    waits[""] = "it was being ended"
                case r.RESUMED | r.FORKED:
                    waits.pop("", None)
                case _ if record.kind in r.ENDS:
                    waits[""] = "it had ended"
            yield record.seq, gone or next(iter([*sagas.values(), *waits.values(), *running.values()]), "")


def _starts_child(record: Record) -> bool:
    return record.kind == r.STEP_DONE and _names_child(record.key) and isinstance(record.value["result"], str)


def _only(name: str, record: Record) -> dict[str, Any]:
    """The payload of a record with this field alone."""
    return {name: record.value[name]} if name in record.value else {}


def _names_child(key: str) -> bool:
    """Whether the step of this key may start a child."""
    return (key.rpartition("]")[2] if key.startswith("[") else key).startswith(SUBMIT)
