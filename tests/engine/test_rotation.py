"""Validation and rotation: a checkpoint that does not fit is refused with the reason. Records behind the kept checkpoints may be
dropped; replays, forks and readers of the journal still work."""

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


def test_without_a_time_the_clock_of_the_worker_does_not_matter() -> None:
    assert Checkpoints(keep=1).dropped_before(100.0) == math.inf
    assert Checkpoints(keep=1, keep_for=30).dropped_before(100.0) == 70.0


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
    """A task of `rounds` rounds, with a checkpoint at the end of each."""
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


async def test_records_behind_the_kept_checkpoints_are_dropped(store: Store) -> None:
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
    for record, was in zip(after, before, strict=True):
        if record.seq <= 2 + 3 * size and was.kind in {r.STEP_DONE, r.PATCHED, r.CHECKPOINT} and was.key not in KEPT:
            assert record.dropped == 4
        elif record.seq < 2 + 4 * size and was.kind in {r.STEP_DONE, r.PATCHED} and was.key not in KEPT:
            assert record.dropped == 4, "checkpoint 4 stands for its round too"
        else:
            assert record == was
    assert await trim(store, task_id, keep=2) == 0, "twice is once"
    assert await trim(store, task_id, keep=3) == 0, "and nothing comes back"
    assert [record.seq for record in await store.journal(task_id, None)] == [after[-1].seq]
    assert await dense(store, task_id)
    assert await store.health.census() == []


async def test_fewer_checkpoints_than_keep_drop_nothing(store: Store) -> None:
    task_id = await written(store, 2)
    assert await trim(store, task_id, keep=3) == 0
    assert await trim(store, next_id(), keep=1) == 0
    assert all(not record.dropped for record in await store.journal(task_id, limit=1000))


async def test_young_records_stay(store: Store, time: Time) -> None:
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
            number_read = await ctx.step(lambda number=number: number, name="read", effect="read")
            name = await ctx.step(lambda: ctx.keep(f"text {number_read}"), name="write")
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
                    operation = program[number]

                    async def read(number: int = number) -> int:
                        return number

                    if operation in {"read", "step"}:
                        effect = "read" if operation == "read" else None
                        seen = [*seen, await ctx.step(read, name=operation, effect=effect)]
                    elif operation == "fact":
                        fact = Fact(key=str(number), value=seen, source="s")
                        state = await ctx.patch(StatePatch(append_facts=(fact,)))
                    elif operation == "plan":
                        state = await ctx.patch(StatePatch(replace_plan=(f"plan {number}",), flag_risks=("r",)))
                    elif operation == "sleep":
                        await ctx.sleep("1m")
                    elif operation == "gather":
                        both = [ctx.step(read, name="branch", effect="read") for _ in range(2)]
                        seen = [*seen, *await ctx.gather(*both)]
                    elif operation == "fail":
                        try:
                            await ctx.step(fail)
                        except Exception as error:
                            seen = [*seen, type(error).__name__]
                    elif operation == "checkpoint":
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
            entries = sorted((record.kind, record.key) for record in records)
            return await handle.result(), entries, whole(records)

    result, entries, saved = await outcome(Checkpoints(), trims=False)
    other, entries_of_rotated, kept = await outcome(Checkpoints(strategy, keep=keep), trims=True)
    assert (other, entries_of_rotated) == (result, entries)
    assert kept == saved[-len(kept) :] if saved else kept == []
    assert len(kept) >= min(len(saved), keep or 1)


@pytest.mark.slow
async def test_rotation_keeps_open_questions_and_early_signals(lab: Lab) -> None:
    """An open question and a signal from before the checkpoint are still there after a rotation."""

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
    """The recorded reason why the task is parked."""
    task = await lab.settled(task_id, no_more="asleep")
    assert (task.state, task.reason) == (State.WAITING, "parked")
    parked = [record for record in await journal(lab.app, task_id) if record.kind == r.PARKED]
    return str(parked[-1].value["reason"])


@pytest.mark.slow
async def test_a_checkpoint_that_is_too_old_parks_until_a_resume(lab: Lab) -> None:
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
    assert (await lab.settled(fork.id)).reason == "asleep", "a fork accepts the age of the checkpoint"


async def test_a_task_goes_on_from_a_checkpoint_that_is_young_enough(lab: Lab) -> None:
    task_id = await asleep(lab, Checkpoints(max_age="2m"))
    assert (await lab.ended(task_id)).result == "there"


@pytest.mark.slow
@pytest.mark.usefixtures("plain_payloads")
@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ('{"form": 2, "number": 1}', "its form is 2, and this program knows 1; it was written by another version"),
        ('{"number": 1}', "its record 3 has no value, inbox"),
        ("nonsense", "its record 3 is not JSON"),
        ("[]", "its record 3 is no object"),
    ],
)
async def test_a_checkpoint_that_cannot_be_read_parks(lab: Lab, data: str, sentence: str) -> None:
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
@pytest.mark.usefixtures("plain_payloads")
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
