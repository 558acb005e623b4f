"""Votes of many processes at once, and of processes that are killed: each approval has one decision, of as many votes as its rule needs."""

from __future__ import annotations

import asyncio
import collections
import json
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onward import ApprovalRule, Context, Onward
from onward.core.approval import VOTE
from onward.core.caller import SCOPES, Caller
from onward.core.views import Ask
from onward.errors import AlreadyDecided, TooManyAskers
from onward.server.access.service import AuthorizedService
from onward.service.askers import Askers
from onward.service.submission import SubmitRequest
from onward.store.shared import tasks
from tests.kit import eventually

NEEDED = 3
VOTERS = 20


def voter(number: int) -> Caller:
    return Caller(name=f"p{number}", person=f"p{number}", roles=frozenset({"approver"}))


def submitter(number: int) -> Caller:
    return Caller(name=f"p{number}", person=f"p{number}", scopes=SCOPES)


async def asked(app: Onward, count: int) -> list[Ask]:
    """So many open approvals that need three votes; no worker runs any more."""
    app.approval_rules = (ApprovalRule(approvers=["role:approver"], votes=NEEDED),)

    @app.task
    async def send(ctx: Context, number: int) -> str:
        return str((await ctx.approve(f"send {number}"))["by"])

    ids = [handle.id for handle in await app.submit_many("send", list(range(count)))]

    async def all_there() -> list[Ask] | None:
        asks = {ask.task_id: ask for ask in await app.asks("approval")}
        return [asks[task_id] for task_id in ids] if len(asks) == count else None

    async with app.worker():
        result: list[Ask] = await eventually(all_there)
    return result


async def check(app: Onward, asks: Sequence[Ask]) -> None:
    """Each approval has exactly one decision, of three voters; and no vote without it has been enough."""
    for ask in asks:
        messages = await app.store.inbox(ask.task_id)
        kinds = collections.Counter(message.kind for message in messages)
        voters = [json.loads(message.data)["voter"] for message in messages if message.kind == VOTE]
        assert len(set(voters)) == len(voters) == kinds[VOTE], "one vote each"
        decisions = [json.loads(message.data) for message in messages if message.kind == "decision"]
        assert len(decisions) == (kinds[VOTE] == NEEDED), (ask.id, kinds)
        for decision in decisions:
            assert [vote["voter"] for vote in decision["votes"]] == voters


async def test_twenty_votes_at_once_give_one_decision(app: Onward, url: str, kind: str) -> None:
    asks = await asked(app, 5)
    others = [app] if kind == "sqlite memory" else [app, *[Onward(url) for _ in range(3)]]

    async def vote(ask: Ask, number: int) -> str:
        service = AuthorizedService(others[number % len(others)].service, voter(number))
        try:
            return "decided" if (await service.decide(ask.id, "approve", digest=ask.digest)).decided else "voted"
        except AlreadyDecided:
            return "late"

    for other in others[1:]:
        await other.open()
    answers = await asyncio.gather(*[vote(ask, number) for number in range(VOTERS) for ask in asks])
    assert collections.Counter(answers) == {
        "voted": (NEEDED - 1) * len(asks),
        "decided": len(asks),
        "late": (VOTERS - NEEDED) * len(asks),
    }
    await check(app, asks)
    entries = [entry for entry in await app.audit(limit=1000) if entry.action == "approve"]
    assert len(entries) == NEEDED * len(asks)
    assert (await app.service.audit.verify()).sound
    for other in others[1:]:
        await other.close()
    async with app.worker():
        for ask in asks:
            task = await app.service.wait(ask.task_id, 60)
            assert len(task.result.split(", ")) == NEEDED


async def test_a_second_submitter_is_an_asker_and_one_too_many_is_refused(
    app: Onward, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def send(ctx: Context) -> None: ...

    async def submitted_by(number: int) -> str:
        (task_id,) = await AuthorizedService(app.service, submitter(number)).submit([SubmitRequest("send", key="k")])
        return task_id

    monkeypatch.setattr(tasks, "MAX_ASKERS", 2)
    task_id = await submitted_by(0)
    assert {await submitted_by(number) for number in (1, 0, 2, 1)} == {task_id}
    with pytest.raises(TooManyAskers, match=f"2 principals asked for task {task_id}"):
        await submitted_by(3)
    with pytest.raises(TooManyAskers):
        await AuthorizedService(app.service, submitter(4)).signal(task_id, "go")
    assert await app.store.inbox(task_id) == [], "the signal was refused with it"
    for number in (0, 1, 2):
        await submitted_by(number)
    assert await Askers(app.store).of(task_id) == {f"person:p{number}" for number in (0, 1, 2)}


async def test_a_vote_and_a_denial_at_once_give_one_decision(app: Onward) -> None:
    asks = await asked(app, 10)

    async def vote(ask: Ask, number: int, decision: str) -> None:
        try:
            await AuthorizedService(app.service, voter(number)).decide(ask.id, decision)
        except AlreadyDecided:
            return

    ways = [(1, "approve"), (2, "approve"), (3, "approve"), (4, "deny"), (1, "deny")]
    await asyncio.gather(*[vote(ask, number, decision) for ask in asks for number, decision in ways])
    for ask in asks:
        decisions = [json.loads(message.data) for message in await app.store.inbox(ask.task_id) if message.ref]
        (decision,) = decisions
        assert len(decision["votes"]) == (NEEDED if decision["decision"] == "approve" else 1)


VOTE_ALL = """
import asyncio, sys
from onward import Onward
from onward.errors import AlreadyDecided, TooManyAskers
from onward.server.access.service import AuthorizedService
from tests.store.test_store_votes import NEEDED, voter

async def main(url: str, ids: list[str]) -> None:
    async with Onward(url) as app:
        print("open", flush=True)
        for ask_id in ids:
            for number in range(NEEDED + 1):
                try:
                    await AuthorizedService(app.service, voter(number)).decide(ask_id, "approve")
                except AlreadyDecided:
                    pass

asyncio.run(main(sys.argv[1], sys.argv[2:]))
"""


@pytest.mark.slow
async def test_processes_that_vote_are_killed(app: Onward, url: str, kind: str) -> None:
    if kind == "sqlite memory":
        pytest.skip("other processes do not reach a database in memory")
    asks = await asked(app, 40)
    dice = random.Random(7)
    killed = 0
    while True:
        process = await _start(url, [ask.id for ask in asks])
        assert process.stdout is not None
        await process.stdout.readline()
        try:
            await asyncio.wait_for(process.wait(), dice.uniform(0.05, 0.2) * 1.5**killed)
            break
        except TimeoutError:
            process.send_signal(signal.SIGKILL)
            await process.wait()
            killed += 1
        await check(app, asks)
    assert process.returncode == 0
    assert killed >= 2, "the processes were killed at work"
    await check(app, asks)
    assert all(message for message in [await _decided(app, ask) for ask in asks])
    assert (await app.service.audit.verify()).sound


async def _decided(app: Onward, ask: Ask) -> Any:
    return [message for message in await app.store.inbox(ask.task_id) if message.ref == ask.seq]


async def _start(url: str, ids: list[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", VOTE_ALL, url, *ids, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
