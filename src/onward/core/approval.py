"""Approvals: their digests, the rules that say who may decide them, and the count of votes. Pure.

A decision names the digest of what its caller was shown. The digest is the SHA-256 of canonical JSON (`wire.digest`) of these fields of
an approval, under the names that they have in its document: `id`, `task`, `text`, `risk` and `data`; and `rule`, where it has one. For a
call of an agent's tool, `data` has the tool and all of its arguments. So a receiver can compute the digest of a document itself.

The worker writes the rule that matches into the record of the approval. So a later change of the rules does not change an open approval,
and the rule holds for every caller: over HTTP, MCP, the command line and Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from onward.core import wire
from onward.core.caller import ANONYMOUS, ROLES, Caller
from onward.core.durations import Time
from onward.core.view_json import from_json
from onward.errors import BadSetting

APPROVE: Final = "approve"
DENY: Final = "deny"
VOTE: Final = "vote"
"""The kind of the message to a task that has a vote."""

MAX_VOTES: Final = 20
"""Votes that a rule may need."""
MAX_NAMES: Final = 100
"""Names in one list of a rule."""
MAX_NAME_CHARS: Final = 500

_LISTS: Final = ("risks", "tools", "handlers", "approvers")
_KINDS: Final = ("role", "person", "key", "cli", "mcp", "python")
"""The kinds of approvers: the word before the colon."""


def digest(approval_id: str, task: str, payload: Mapping[str, Any]) -> str:
    """The digest of an approval; `payload` is that of its record."""
    shown = {
        "id": approval_id,
        "task": task,
        "text": payload.get("what"),
        "risk": payload.get("risk"),
        "data": payload.get("data"),
    }
    return wire.digest(shown if payload.get("rule") is None else shown | {"rule": payload["rule"]})


def digest_with(approval_id: str, task: str, payload: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """The digest of the same approval with these arguments in place of its own: what was decided."""
    return digest(approval_id, task, {**payload, "data": {**payload["data"], "arguments": arguments}})


# ── rules ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True, slots=True)
class ApprovalRule:
    """Says who may decide the approvals that it matches, and how many votes they need. Of several rules the first that matches holds.

    A rule matches an approval of one of these risks, for one of these tools, of a task with one of these handlers (an agent is a
    handler). An empty list matches all. `approvers` lists who may decide:

        role:approver       a person who signed in and has this role
        person:ID           this person, by the id of the identity provider
        key:ID              a program with this key, by the id of the key
        cli:USER@HOST       this account at the command line, on the database itself (mcp:USER@HOST: the same for `onward mcp`)
        python:NAME         a program that calls `app.decide(…, by=NAME)`

    Without approvers, each person who signed in and each key with the scope decide may. A caller who asked for the action may not,
    unless `asker` is true.
    """

    risks: Sequence[str] = ()
    tools: Sequence[str] = ()
    handlers: Sequence[str] = ()
    approvers: Sequence[str] = ()
    votes: int = 1
    """How many approvers have to approve. One denial denies."""
    asker: bool = False
    """Whether a caller may decide who submitted, forked or resumed the task or one above it, or sent it something."""

    def __post_init__(self) -> None:
        for name in _LISTS:
            names = getattr(self, name)
            if isinstance(names, str):
                raise BadSetting(name, names, "a list of strings")
            object.__setattr__(self, name, tuple(names))

    def __str__(self) -> str:
        """The rule in words, for people."""
        who = ", ".join(self.approvers) if self.approvers else "any person or key with the scope decide"
        count = "one vote" if self.votes == 1 else f"{self.votes} votes"
        return f"{count} of {who}{'' if self.asker else '; not of those who asked'}"


def check_rule(rule: ApprovalRule) -> None:
    """Raises BadSetting for a rule that no worker could apply. (A rule in a record was checked before it was written.)"""
    for field in _LISTS:
        _check_names(field, getattr(rule, field))
    for approver in rule.approvers:
        kind, _, rest = approver.partition(":")
        if kind not in _KINDS or not rest:
            wanted = "role:NAME, person:ID, key:ID, cli:USER@HOST, mcp:USER@HOST or python:NAME"
            raise BadSetting("approvers", approver, wanted)
        if kind == "role" and rest not in ROLES:
            raise BadSetting("approvers", approver, f"role: and one of {', '.join(ROLES)}")
    if type(rule.votes) is not int or not 1 <= rule.votes <= MAX_VOTES:
        raise BadSetting("votes", rule.votes, f"a whole number between 1 and {MAX_VOTES}")
    if type(rule.asker) is not bool:
        raise BadSetting("asker", rule.asker, "True or False")
    most = len(set(rule.approvers))
    if 0 < most < rule.votes and not any(approver.startswith("role:") for approver in rule.approvers):
        raise BadSetting("votes", rule.votes, f"at most {most}: the rule has no more approvers")


def _check_names(field: str, names: Sequence[Any]) -> None:
    if len(names) > MAX_NAMES:
        raise BadSetting(field, f"{len(names)} names", f"at most {MAX_NAMES}")
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise BadSetting(field, name, f"strings of 1 to {MAX_NAME_CHARS} printable characters")


def read_rule(payload: Mapping[str, Any]) -> ApprovalRule | None:
    """The rule in the record of an approval, as far as this version knows its fields; None where it has none. A newer version may have
    checked it otherwise, so it is not checked here: `decide` refuses a rule that this version cannot read as a whole."""
    return None if payload.get("rule") is None else from_json(ApprovalRule, payload["rule"])


def first_match(rules: Iterable[ApprovalRule], handler: str, payload: Mapping[str, Any]) -> ApprovalRule | None:
    """The rule that holds for an approval that is asked for now; `payload` is that of its record."""
    data = payload.get("data")
    tool = data.get("tool") if isinstance(data, dict) else None
    for rule in rules:
        fields = ((rule.risks, payload.get("risk")), (rule.tools, tool), (rule.handlers, handler))
        if all(not names or value in names for names, value in fields):
            return rule
    return None


def refusal(rule: ApprovalRule, caller: Caller, askers: Collection[str]) -> str:
    """Why this caller may not decide; empty when it may. `askers` are the principals that asked for the action."""
    if not _lists(rule, caller):
        return f"{caller.title} is not among those who may decide"
    if rule.asker:
        return ""
    if ANONYMOUS in askers:
        return (
            "the task was submitted without a key, so it is not known who asked, and no caller may decide; "
            "cancel it, and submit it with a key or as a person"
        )
    if caller.principal in askers:
        return (
            f"{caller.title} asked for it: as {caller.principal} it submitted, forked or resumed the task or one above it, or "
            "sent it something"
        )
    return ""


def _lists(rule: ApprovalRule, caller: Caller) -> bool:
    if not rule.approvers:
        return caller.person is not None or caller.key is not None
    return not caller.approver_names.isdisjoint(rule.approvers)


# ── votes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True, slots=True)
class Vote:
    """The vote of one approver on one approval."""

    voter: str
    """The principal that voted: it has one vote, whatever key or session it uses."""
    by: str
    """Its name."""
    decision: str
    """"approve" or "deny"."""
    reason: str
    at: Time


class StoredVote(NamedTuple):
    """A vote as the store has it."""

    task_id: str
    seq: int
    data: bytes
    at: float


def read_votes(stored: Iterable[StoredVote], digest_: str | None) -> tuple[Vote, ...]:
    """The votes on the approval with this digest, in their order. A fork has copies of the votes on the approvals of its origin;
    those have other digests, and do not count."""
    votes = []
    for row in stored:
        value = wire.decode(row.data)
        if value.get("digest") == digest_:
            votes.append(Vote(value["voter"], value["by"], value["decision"], value.get("reason", ""), row.at))
    return tuple(votes)


def approving(votes: Sequence[Vote]) -> int:
    """How many callers approve: a caller that approved and then denied does not."""
    against = {vote.voter for vote in votes if vote.decision == DENY}
    return len({vote.voter for vote in votes} - against)


def outcome(rule: ApprovalRule, votes: Sequence[Vote]) -> str | None:
    """The decision that these votes make; None while more are needed. One denial denies."""
    if any(vote.decision == DENY for vote in votes):
        return DENY
    return APPROVE if approving(votes) >= rule.votes else None


def decision_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """The decision in a message to a task, with the `rule` of its approval. A program that knows no rules may have written it, while
    programs of two versions run: a decision without votes then counts as a denial."""
    decision: dict[str, Any] = message["value"]
    if message.get("rule") is not None and not decision.get("votes"):
        reason = "it was decided by a program that does not know approval rules; upgrade all servers, and ask again"
        return {"decision": DENY, "reason": reason}
    return decision
