"""Validation and rotation: a checkpoint that does not fit is refused with the reason; what kept ones stand for may be dropped,
and nobody who reads the journal, or goes on from it, is worse off."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward import Onward, State
from onward.agent.loop import CHECKPOINT_EVERY_TURNS
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.core import record as r
from onward.core.journal.checkpoint import Checkpoints
from onward.core.record import Record
from onward.core.state import AgentState, Fact, StatePatch
from onward.errors import BadSetting, CannotFork, UnfitCheckpoint
from onward.store.port.core import Batch, Store
from onward.testing import crashes, drain, memory_app
from tests.kit import Lab, Time, begun, dense, entry, next_id, sql

ALWAYS = math.inf


async def journal(app: Onward, task_id: str) -> list[Record]:
    return await app.store.journal(task_id, limit=100_000)


def whole(records: list[Record]) -> list[int]:
    """The numbers of the checkpoints that were not dropped."""
    return [record.value["number"] for record in records if record.kind == r.CHECKPOINT and not record.dropped]


# ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────

KINDS = [
    (r.STEP_DONE, "one"),
    (r.STEP_DONE, "submit child"),
    (r.QUESTION, "question"),
    (r.MESSAGE, ""),
    (r.WAITED, "question"),
    (r.ANNOUNCED, "pay"),
    (r.STEP_DONE, "pay"),
    (r.STEP_FAILED, "no"),
    (r.PATCHED, "patch"),
]
KEPT = {"submit child", "question", "no"}


async def written(store: Store, rounds: int) -> str:
    """A task of so many rounds, a checkpoint at the end of each."""
    held = await begun(store)
    entries = []
    for number in range(1, rounds + 1):
        kinds = [*KINDS, (r.CHECKPOINT, "")]
        for kind, key in kinds:
            data = b'{"number":%d,"value":"v"}' % number if kind == r.CHECKPOINT else b'{"result":"something long"}'
            entries.append(entry(held, len(entries) + 1, kind, key, data))
    assert await store.save("w1", Batch(entries)) == set()
    return held.id


async def trim(store: Store, task_id: str, keep: int, before: float = ALWAYS) -> int:
    return await store.pruning.trim(task_id, keep, before)


async def test_what_kept_checkpoints_stand_for_is_dropped(store: Store) -> None:
    task_id = await written(store, 5)
    before = await store.journal(task_id, limit=1000)
    dropped = await trim(store, task_id, keep=2)
    after = await store.journal(task_id, limit=1000)
    size = len(KINDS) + 1
    assert dropped == 3 * 4 + 3, "of three rounds: a step, an effect's result, a patch; and three checkpoints"
    assert whole(after) == [4, 5]
    assert [(a.seq, a.shift, a.kind, a.key, a.at) for a in after] == [
        (b.seq, b.shift, b.kind, b.key, b.at) for b in before
    ]
    for one, was in zip(after, before, strict=True):
        if one.seq <= 2 + 3 * size and was.kind in {r.STEP_DONE, r.PATCHED, r.CHECKPOINT} and was.key not in KEPT:
            assert one.dropped == 4
        elif one.seq < 2 + 4 * size and was.kind in {r.STEP_DONE, r.PATCHED} and was.key not in KEPT:
            assert one.dropped == 4, "checkpoint 4 stands for its round too"
        else:
            assert one == was
    assert await trim(store, task_id, keep=2) == 0, "twice is once"
    assert await trim(store, task_id, keep=3) == 0, "and nothing comes back"
    assert [one.seq for one in await store.journal(task_id, None)] == [after[-1].seq]
    assert await dense(store, task_id)
    assert await store.health.census() == []


async def test_fewer_than_are_kept_leave_all_as_it_is(store: Store) -> None:
    task_id = await written(store, 2)
    assert await trim(store, task_id, keep=3) == 0
    assert await trim(store, next_id(), keep=1) == 0
    assert all(not record.dropped for record in await store.journal(task_id, limit=1000))


async def test_what_is_young_stays(store: Store, time: Time) -> None:
    held = await begun(store)
    seq = 0
    for number in range(1, 6):
        step, saved = (entry(held, seq + n) for n in (1, 2))
        at = time.now
        lines = [
            (*step[:6], at),
            (*saved[:3], r.CHECKPOINT, "", b'{"number":%d,"value":1}' % number, at),
        ]
        assert await store.save("w1", Batch(lines)) == set()
        seq += 2
        time.move(100)
    assert await trim(store, held.id, 1, time.now - 250) == 6, "the three steps and checkpoints before that"
    records = await store.journal(held.id)
    assert whole(records) == [4, 5]
    assert [record.dropped for record in records if record.kind == r.STEP_DONE] == [4, 4, 4, 0, 0]
    assert await trim(store, held.id, 4, time.now) == 0, "and so do the last few, however old"


async def test_a_fork_that_lost_the_race_is_refused(store: Store) -> None:
    task_id = await written(store, 3)
    await trim(store, task_id, keep=1)
    size = len(KINDS) + 1
    fork = next_id()
    with pytest.raises(CannotFork, match="dropped just now"):
        await store.fork(fork, task_id, 2 + size, input=b"1", inbox=0)
    assert await store.get(fork) is None, "nothing of it is there"
    await store.fork(fork, task_id, 2 + 3 * size, input=b"1", inbox=0)
    assert whole(await store.journal(fork, limit=1000)) == [3]


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def rounds_of(app: Onward, checkpoint: Any) -> Any:
    """A task that counts: reads, a step, a fact, a question now and then, and a checkpoint after each round."""

    @app.task(checkpoint=checkpoint)
    async def rounds(ctx: Any) -> Any:
        at = ctx.restored or {"round": 0, "state": {"goal": "count"}}
        await ctx.patch(AgentState.model_validate(at["state"]))
        for number in range(at["round"], len(COUNTED)):
            found = await ctx.step(lambda number=number: number, name="read", effect="read")
            name = await ctx.step(lambda: ctx.keep(f"text {found}"), name="write")
            fact = Fact(key=f"k{number}", value=name, source="write")
            state = await ctx.patch(StatePatch(append_facts=(fact,)))
            if number % 2:
                await ctx.sleep("1m")
            await ctx.checkpoint({"round": number + 1, "state": state.model_dump(mode="json")})
            await ctx.patch(state)
        texts = await ctx.kept(*[fact.value for fact in ctx.state.known_facts])
        return [text.decode() for text in texts]

    return rounds


COUNTED = [f"text {number}" for number in range(6)]


@pytest.mark.parametrize("keep", [1, 3])
async def test_rotation_keeps_so_many_and_breaks_nothing(app: Onward, keep: int) -> None:
    @app.task(checkpoint=Checkpoints(keep=keep))
    async def work(ctx: Any) -> Any:
        for number in range(ctx.restored or 0, 6):
            await ctx.step(lambda number=number: "x" * 1000 + str(number), name="read")
            await ctx.checkpoint(number + 1)
        return ctx.restored

    async with app.worker():
        handle = await app.submit(work)
        assert await handle.result(timeout=60) == 6
        records = await journal(app, handle.id)
        assert whole(records) == list(range(6 - keep + 1, 7))
        steps = [record.dropped for record in records if record.kind == r.STEP_DONE]
        assert [bool(number) for number in steps] == [True] * (6 - keep + 1) + [False] * (keep - 1)
        assert await app.store.health.census() == []
        assert (await app.replay(handle.id)).agrees
        with pytest.raises(CannotFork, match=r"the records before checkpoint \d were dropped; the nearest"):
            await app.fork(handle.id, at=4)
        last = [record for record in records if record.kind == r.CHECKPOINT][-1]
        fork = await app.fork(handle.id, at=last.seq)
        assert await fork.result(timeout=60) == 6
        anew = await app.fork(handle.id, at=1)
        assert await anew.result(timeout=60) == 6


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["every_step", "every_iteration", "on_state_change"])
async def test_killed_anywhere_with_rotation(strategy: str) -> None:
    points = 0
    async for app in crashes():
        handle = await app.submit(rounds_of(app, Checkpoints(strategy, keep=1)))
        await drain(app)
        assert await handle.result(timeout=1) == COUNTED, app.killed_at
        records = await journal(app, handle.id)
        assert whole(records)[-1:] == [6], app.killed_at
        assert await dense(app.store, handle.id)
        assert await app.store.health.census() == []
        assert (await app.replay(handle.id)).agrees
        points += 1
    assert points > 40


ops = st.lists(
    st.sampled_from(["read", "step", "fact", "plan", "sleep", "gather", "fail", "trim", "checkpoint"]), max_size=14
)


@pytest.mark.slow
@settings(max_examples=60)
@given(ops, st.sampled_from([None, 1, 2]), st.sampled_from(["every_step", "every_iteration", "on_state_change"]))
async def test_wherever_it_is_rotated_the_result_is_the_same(
    program: list[str], keep: int | None, strategy: str
) -> None:
    """Patches commute with snapshots: a program of any form, run whole and run with rotation."""

    async def fail() -> None:
        raise RuntimeError("no")

    async def outcome(checkpoint: Checkpoints, *, trims: bool) -> Any:
        app = memory_app()
        async with app:

            @app.task(checkpoint=checkpoint)
            async def run(ctx: Any) -> Any:
                at = ctx.restored or {"at": 0, "state": {"goal": "g"}, "seen": []}
                state, seen = await ctx.patch(AgentState.model_validate(at["state"])), at["seen"]
                for number in range(at["at"], len(program)):
                    what = program[number]

                    async def read(number: int = number) -> int:
                        return number

                    if what in {"read", "step"}:
                        effect = "read" if what == "read" else None
                        seen = [*seen, await ctx.step(read, name=what, effect=effect)]
                    elif what == "fact":
                        fact = Fact(key=str(number), value=seen, source="s")
                        state = await ctx.patch(StatePatch(append_facts=(fact,)))
                    elif what == "plan":
                        state = await ctx.patch(StatePatch(replace_plan=(f"plan {number}",), flag_risks=("r",)))
                    elif what == "sleep":
                        await ctx.sleep("1m")
                    elif what == "gather":
                        both = [ctx.step(read, name="branch", effect="read") for _ in range(2)]
                        seen = [*seen, *await ctx.gather(*both)]
                    elif what == "fail":
                        try:
                            await ctx.step(fail)
                        except Exception as error:
                            seen = [*seen, type(error).__name__]
                    elif what == "checkpoint":
                        at = {"at": number + 1, "state": state.model_dump(mode="json"), "seen": seen}
                        await ctx.checkpoint(at)
                        state = await ctx.patch(state)
                    elif trims:
                        await app.store.pruning.trim(ctx.task_id, 1, ALWAYS)
                return [seen, state.model_dump(mode="json")]

            handle = await app.submit(run)
            assert await drain(app) == []
            records = await journal(app, handle.id)
            assert await app.store.health.census() == []
            assert (await app.replay(handle.id)).agrees
            told = sorted((record.kind, record.key) for record in records)
            return await handle.result(), told, whole(records)

    result, told, saved = await outcome(Checkpoints(), trims=False)
    other, retold, kept = await outcome(Checkpoints(strategy, keep=keep), trims=True)
    assert (other, retold) == (result, told)
    assert kept == saved[-len(kept) :] if saved else kept == []
    assert len(kept) >= min(len(saved), keep or 1)


@pytest.mark.slow
async def test_what_a_living_task_needs_stays(lab: Lab) -> None:
    """A question that is open, and a signal that came before the checkpoint: both are there after a rotation."""

    @lab.app.task(checkpoint=Checkpoints(keep=1))
    async def work(ctx: Any) -> Any:
        if ctx.restored is None:
            await ctx.sleep("1m")
            await ctx.checkpoint("there")
        await ctx.sleep("1m")
        answer = await ctx.ask("Go on?")
        return [ctx.restored, await ctx.signal("early"), answer]

    task_id = await lab.submit(work)
    await lab.start()
    await lab.settled(task_id)
    await lab.app.signal(task_id, "early", 7)
    await lab.settled(task_id, no_more="asleep")
    await lab.store.pruning.trim(task_id, 1, ALWAYS)  # type: ignore[attr-defined]
    (ask,) = await lab.app.asks()
    assert ask.text == "Go on?"
    await lab.app.answer(ask.id, "yes")
    assert (await lab.ended(task_id)).result == ["there", 7, "yes"]


# ── is it fit to go on from? ─────────────────────────────────────────────────────────────────────────────────────────


async def asleep(lab: Lab, checkpoint: Any = None) -> str:
    """A task that sleeps after its first checkpoint."""

    @lab.app.task(checkpoint=checkpoint, name="work")
    async def work(ctx: Any) -> Any:
        if ctx.restored is None:
            await ctx.checkpoint("there")
        await ctx.sleep("1m")
        return ctx.restored

    task_id = await lab.submit("work")
    await lab.start()
    await lab.settled(task_id)
    return task_id


async def why(lab: Lab, task_id: str) -> str:
    """Why it is parked."""
    task = await lab.settled(task_id, no_more="asleep")
    assert (task.state, task.reason) == (State.WAITING, "parked")
    parked = [record for record in await journal(lab.app, task_id) if record.kind == r.PARKED]
    return str(parked[-1].value["reason"])


@pytest.mark.slow
async def test_one_that_is_too_old_parks_until_somebody_says_go_on(lab: Lab) -> None:
    task_id = await asleep(lab, Checkpoints(max_age="50s"))
    sentence = await why(lab, task_id)
    assert sentence.startswith(
        "the task cannot go on from its checkpoint 1: it is 1 min old, and its handler goes on from"
    )
    assert "`onward resume` then goes on from it" in sentence
    saved = next(record.seq for record in await journal(lab.app, task_id) if record.kind == r.CHECKPOINT)
    fork = await lab.app.fork(task_id, at=saved)
    await lab.app.resume(task_id)
    assert (await lab.ended(task_id)).result == "there"
    assert (await lab.settled(fork.id)).reason == "asleep", "who forks it says so too"


async def test_one_that_is_young_enough_goes_on(lab: Lab) -> None:
    task_id = await asleep(lab, Checkpoints(max_age="2m"))
    assert (await lab.ended(task_id)).result == "there"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ('{"form": 2, "number": 1}', "its form is 2, and this program knows 1; it was written by another version"),
        ('{"number": 1}', "its record 3 has no value, inbox"),
        ("nonsense", "its record 3 is not JSON"),
        ("[]", "its record 3 is no object"),
    ],
)
async def test_one_that_cannot_be_read_parks(lab: Lab, data: str, sentence: str) -> None:
    task_id = await asleep(lab)
    saved = f"task_id = '{task_id}' AND kind = '{r.CHECKPOINT}'"
    ((before,),) = await sql(lab.store, f"SELECT data FROM onward_journal WHERE {saved}")
    await sql(lab.store, f"UPDATE onward_journal SET data = CAST('{data}' AS BLOB) WHERE {saved}")
    (finding,) = await lab.app.check()
    assert finding.verdict == "parks"
    assert sentence in finding.detail
    assert sentence in await why(lab, task_id)
    await sql(lab.store, f"UPDATE onward_journal SET data = CAST('{before.decode()}' AS BLOB) WHERE {saved}")
    await lab.app.resume(task_id)
    assert (await lab.ended(task_id)).result == "there"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"version":1', '"version":9', "its state has version 9, and this program knows 1"),
        ('"goal":', '"gaol":', "its state cannot be read"),
        ('"pages":', '"papers":', "it is not an agent's"),
    ],
)
async def test_an_agents_state_that_does_not_fit_parks(lab: Lab, old: str, new: str, sentence: str) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    script: Any = [[("look", {})]] * CHECKPOINT_EVERY_TURNS + [[("ask_user", {"question": "Go on?"})], "done"]
    lab.app.agent("a", model=ScriptedModel(script), tools=[look])
    task_id = await lab.submit("a", "go")
    await lab.start()
    await lab.settled(task_id)
    saved = f"task_id = '{task_id}' AND kind = '{r.CHECKPOINT}'"
    change = "UPDATE onward_journal SET data = CAST(replace(CAST(data AS TEXT), '{0}', '{1}') AS BLOB) WHERE " + saved
    await sql(lab.store, change.format(old, new))
    (ask,) = await lab.app.asks()
    await lab.app.answer(ask.id, "yes")
    task = await lab.settled(task_id, no_more="question")
    assert task.reason == "parked"
    parked = [record for record in await journal(lab.app, task_id) if record.kind == r.PARKED]
    assert sentence in parked[-1].value["reason"]
    await sql(lab.store, change.format(new, old))
    await lab.app.resume(task_id)
    assert (await lab.ended(task_id)).result == "done"


@pytest.mark.slow
async def test_a_handler_may_refuse_its_own_checkpoint(lab: Lab) -> None:
    fits: list[int] = []

    @lab.app.task
    async def work(ctx: Any) -> Any:
        if ctx.restored is None:
            await ctx.checkpoint({"shape": "old"})
            await ctx.sleep("1m")
        elif not fits:
            raise UnfitCheckpoint(None, "it has the old shape", "migrate it")
        return ctx.restored["shape"]

    task_id = await lab.submit(work)
    await lab.start()
    assert await why(lab, task_id) == "the task cannot go on from its last checkpoint: it has the old shape; migrate it"
    assert (await lab.app.get(task_id)).attempt == 1, "nothing was tried again"


@pytest.mark.parametrize("wrong", [{"keep": 0}, {"keep": True}, {"keep_for": "7d"}, {"strategy": "never"}])
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSetting):
        Checkpoints(**wrong)
