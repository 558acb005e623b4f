"""Who may decide an approval: every combination of people, rules and orders of votes, against a model that is written apart.

The model below says what is right in a dozen lines: it knows neither the code of rules nor that of votes. Each case is a real task
with a real approval; at the end a worker goes on with all of them, and each task has to have heard what the model says.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from onward import ApprovalRule, Context, Denied, Onward
from onward.core.caller import ROLES, Caller
from onward.core.task import State
from onward.core.views import Ask
from onward.errors import AlreadyDecided, Forbidden, NotApprover, OnwardError
from onward.server.access.service import AuthorizedService
from onward.service.submission import SubmitRequest
from tests.kit import eventually


def person(name: str, role: str) -> Caller:
    """A person who signed in."""
    return Caller(scopes=ROLES[role], name=name, person=f"id-{name}", roles=frozenset({role}))


PEOPLE = {
    "viewer": person("vera", "viewer"),
    "operator": person("olga", "operator"),
    "approver A": person("ada", "approver"),
    "approver B": person("bo", "approver"),
    "admin who asked": person("ann", "admin"),
    "other admin": person("kim", "admin"),
}
ASKER = "admin who asked"

RULES = {
    "none": None,
    "by role": ApprovalRule(handlers=["by role"], approvers=["role:approver"]),
    "by risk": ApprovalRule(risks=["by risk"], approvers=["person:id-bo", "person:id-ann", "person:id-kim"]),
    "two of three": ApprovalRule(
        handlers=["two of three"], approvers=["person:id-ada", "person:id-bo", "person:id-kim"], votes=2
    ),
}

Votes = tuple[tuple[str, str], ...]
"""People and what they decide, in this order."""


# ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────────

MAY_DECIDE_AT_ALL = {"approver A", "approver B", "admin who asked", "other admin"}
MAY_DECIDE = {
    "none": MAY_DECIDE_AT_ALL,
    "by role": {"approver A", "approver B"},
    "by risk": {"approver B", "other admin"},
    "two of three": {"approver A", "approver B", "other admin"},
}
NEEDED = {"none": 1, "by role": 1, "by risk": 1, "two of three": 2}


def right(rule: str, votes: Votes) -> tuple[list[str], str]:
    """What each vote has to come to, and the decision in the end ("" for none)."""
    answers, decision, yes = [], "", set[str]()
    for who, vote in votes:
        if who not in MAY_DECIDE_AT_ALL:
            answers.append("forbidden")
        elif who not in MAY_DECIDE[rule]:
            answers.append("not_approver")
        elif decision:
            answers.append("already_decided")
        elif vote == "deny":
            decision = "deny"
            answers.append("decided")
        else:
            yes.add(who)
            decision = "approve" if len(yes) == NEEDED[rule] else ""
            answers.append("decided" if decision else "voted")
    return answers, decision


def cases(length: int, rules: Iterable[str] = RULES) -> list[tuple[str, Votes]]:
    """Each of these rules with every sequence of so many votes, also several votes of one person."""
    every = list(itertools.product(PEOPLE, ("approve", "deny")))
    return [(rule, votes) for rule in rules for votes in itertools.product(every, repeat=length)]


# ── the system ───────────────────────────────────────────────────────────────────────────────────────────────────────


def declare(app: Onward) -> None:
    app.approval_rules = tuple(rule for rule in RULES.values() if rule is not None)
    for name in RULES:

        async def ship(ctx: Context, risk: str) -> str:
            try:
                decision = await ctx.approve("ship it", risk=risk)
            except Denied as denied:
                return f"deny {denied.reason}"
            return f"approve {decision['by']}"

        app.task(name=name, retry=1)(ship)


async def asked(app: Onward, rules: Sequence[str]) -> list[Ask]:
    """An open approval of a task for each of these rules; no worker runs any more."""
    asker = AuthorizedService(app.service, PEOPLE[ASKER])
    ids = await asker.submit([SubmitRequest(rule, {"risk": rule}, queue="q") for rule in rules])

    async def all_wait() -> list[Ask] | None:
        asks = {ask.task_id: ask for ask in await app.asks("approval")}
        return [asks[task_id] for task_id in ids] if len(asks) == len(ids) else None

    async with app.worker(slots=50, queues=["q"]):
        result: list[Ask] = await eventually(all_wait)
    return result


async def answer(app: Onward, ask: Ask, who: str, vote: str) -> str:
    """What comes of one vote."""
    try:
        service = AuthorizedService(app.service, PEOPLE[who])
        decided = await service.decide(ask.id, vote, digest=ask.digest, reason=f"of {who}")
    except OnwardError as error:
        return error.code
    return "decided" if decided.decided else "voted"


@dataclasses.dataclass
class Wrong:
    """What differs from the model."""

    found: list[Any] = dataclasses.field(default_factory=list)

    def compare(self, case: Any, got: Any, wanted: Any) -> None:
        if got != wanted:
            self.found.append((case, got, wanted))


async def judge(app: Onward, all_cases: list[tuple[str, Votes]]) -> Wrong:
    """Votes as each case says, and compares the answers, the decisions in the store and the ends of the tasks with the model."""
    declare(app)
    wrong = Wrong()
    asks = await asked(app, [rule for rule, _ in all_cases])
    for ask, (rule, votes) in zip(asks, all_cases, strict=True):
        answers = [await answer(app, ask, who, vote) for who, vote in votes]
        wrong.compare((rule, votes), answers, right(rule, votes)[0])
        messages = await app.store.inbox(ask.task_id)
        decisions = [json.loads(message.data) for message in messages if message.ref == ask.seq]
        wanted = right(rule, votes)[1]
        wrong.compare((rule, votes), [decision["decision"] for decision in decisions], [wanted] if wanted else [])
        for decision in decisions:
            voters = [vote["voter"] for vote in decision.get("votes", ())]
            wrong.compare((rule, votes), len(voters), 0 if rule == "none" else 1 if wanted == "deny" else NEEDED[rule])
            wrong.compare((rule, votes), len(set(voters)), len(voters))
    open_tasks = [ask.task_id for ask, (rule, votes) in zip(asks, all_cases, strict=True) if not right(rule, votes)[1]]

    async def settled() -> bool:
        left = {ask.task_id for ask in await app.asks("approval")}
        counted, _ = await app.service.count(state=State.COMPLETED)
        return left == set(open_tasks) and counted == len(asks) - len(open_tasks)

    async with app.worker(slots=50, queues=["q"]):
        await eventually(settled, 300)
    for ask, (rule, votes) in zip(asks, all_cases, strict=True):
        task, wanted = await app.get(ask.task_id), right(rule, votes)[1]
        wrong.compare((rule, votes), (str(task.result).partition(" ")[0] if task.ended else ""), wanted)
    return wrong


async def test_every_rule_with_every_vote_and_two_of_three_with_every_two_votes(app: Onward) -> None:
    all_cases = cases(1) + cases(2, ["two of three"])
    assert len(all_cases) == 4 * 12 + 12**2
    wrong = await judge(app, all_cases)
    assert wrong.found == []


@pytest.mark.slow
@pytest.mark.parametrize("length", [2, 3])
async def test_every_rule_with_every_two_or_three_votes(app: Onward, length: int, prove: bool) -> None:
    all_cases = cases(length)
    assert len(all_cases) == 4 * 12**length
    if not prove:
        all_cases = random.Random(15).sample(all_cases, 400)
    wrong = await judge(app, all_cases)
    assert wrong.found == []


async def test_the_model_is_no_echo() -> None:
    """It refuses, decides and waits, and so do its votes in another order."""
    assert right("two of three", (("approver A", "approve"), ("approver A", "approve"))) == (["voted", "voted"], "")
    assert right("two of three", (("approver A", "approve"), ("other admin", "approve"))) == (
        ["voted", "decided"],
        "approve",
    )
    assert right("by risk", ((ASKER, "approve"),)) == (["not_approver"], "")
    assert right("none", ((ASKER, "approve"),)) == (["decided"], "approve")
    assert {Forbidden.code, NotApprover.code, AlreadyDecided.code} == {"forbidden", "not_approver", "already_decided"}
