"""Decisions on approvals that have a rule: checks who may vote, and counts the votes. A part of the service.

Every way to decide comes through here: HTTP, WebSocket, MCP, the command line and Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from onward.core import approval, wire
from onward.core.approval import VOTE, ApprovalRule, StoredVote, Vote
from onward.core.audit import AuditEvent
from onward.core.caller import Caller
from onward.core.ids import Ids
from onward.core.task import Message
from onward.core.view_json import to_json
from onward.core.views import Ask
from onward.errors import NotApprover, UsageError
from onward.service.askers import Askers
from onward.store.port.core import Store
from onward.store.shared.approvals import Counted, Voted


class Votes:
    """Takes votes on approvals that have a rule."""

    def __init__(self, store: Store, ids: Ids, askers: Askers) -> None:
        self._store, self._ids, self._askers = store, ids, askers

    async def read(self, asks: Sequence[Ask], most: int | None = None) -> list[Ask]:
        """These questions and approvals with their votes. Where the votes have more than `most` bytes together, the last ones are left
        out. Costs nothing where none of them has a rule."""
        ruled = [ask.id for ask in asks if ask.rule is not None and ask.digest is not None]
        if not ruled:
            return list(asks)
        fitting = ruled if most is None else _fitting(ruled, await self._store.approvals.vote_sizes(ruled), most)
        votes: dict[str, list[StoredVote]] = {ask_id: [] for ask_id in fitting}
        for row in await self._store.approvals.votes(fitting):
            votes[f"{row.task_id}.{row.seq}"].append(row)
        left_out = set(ruled) - votes.keys()
        return [
            dataclasses.replace(ask, votes=approval.read_votes(votes[ask.id], ask.digest))
            if ask.id in votes
            else dataclasses.replace(ask, left_out=(*ask.left_out, "votes"))
            if ask.id in left_out
            else ask
            for ask in asks
        ]

    async def check(
        self, ask: Ask, rule: ApprovalRule, caller: Caller, arguments: dict[str, Any] | None, always: bool
    ) -> None:
        """Raises NotApprover when the rule does not let this caller decide, and UsageError for what no vote under a rule may do."""
        what = f"approval {ask.id}"
        payload = {"what": ask.text, "risk": ask.risk, "data": ask.data, "rule": to_json(rule)}
        if approval.digest(ask.id, ask.task, payload) != ask.digest:
            why = "this program cannot read all of it, because a newer version wrote it; upgrade this program"
            raise NotApprover(what, why, str(rule))
        if why := approval.refusal(rule, caller, frozenset() if rule.asker else await self._askers.of(ask.task_id)):
            raise NotApprover(what, why, str(rule))
        if always:
            raise UsageError(f"{what} has a rule, which holds for each call; decide this one without 'always'")
        if arguments is not None and (rule.votes > 1 or not rule.asker):
            raise UsageError(
                f"{what} has a rule: a caller that changes the arguments would decide alone on an action of its own; deny it with a "
                "reason, and the agent can ask again"
            )

    async def cast(
        self,
        ask: Ask,
        rule: ApprovalRule,
        caller: Caller,
        value: dict[str, Any],
        event: AuditEvent,
        asker: str | None = None,
    ) -> tuple[Voted, tuple[Vote, ...]]:
        """Write a vote, and the decision when it makes one; `value` is that of a decision, and `asker` the principal that steers the task
        with it. Returns the store's answer, and all votes. A caller that approved may still deny. The same vote again changes nothing."""
        vote = Vote(caller.principal, value.get("by", ""), value["decision"], value.get("reason", ""), 0.0)
        recorded = {"voter": vote.voter, "by": vote.by, **value}
        message = Message(self._ids(), VOTE, str(ask.seq), None, wire.encode(recorded, "the vote"))
        votes: tuple[Vote, ...] = ()

        def count(stored: Sequence[StoredVote]) -> Counted:
            nonlocal votes
            earlier = approval.read_votes(stored, ask.digest)
            if any((known.voter, known.decision) == (vote.voter, vote.decision) for known in earlier):
                votes = earlier
                return Counted(True, None, None)
            votes = (*earlier, vote)
            decision, number = approval.outcome(rule, votes), approval.approving(votes)
            data = {**event.data, "voter": vote.voter, "votes": number, "needed": rule.votes}
            if decision is None:
                return Counted(False, None, event._replace(data=data))
            counted = [cast for cast in votes if cast.decision == decision]
            names = {
                "by": ", ".join(cast.by or cast.voter for cast in counted),
                "votes": [{"voter": cast.voter, "by": cast.by} for cast in counted],
            }
            decided = wire.encode({**value, **names}, "the decision")
            return Counted(
                False,
                Message(self._ids(), "decision", "", ask.seq, decided),
                event._replace(data={**data, "outcome": decision}),
            )

        return await self._store.approvals.vote(ask.task_id, ask.seq, message, count, asker), votes


def _fitting(approval_ids: Sequence[str], sizes: Mapping[str, int], room: int) -> list[str]:
    """The first of these approvals whose votes have at most `room` bytes together."""
    fitting = []
    for approval_id in approval_ids:
        room -= sizes.get(approval_id, 0)
        if room < 0:
            break
        fitting.append(approval_id)
    return fitting
