"""Forks: a new task from the first records of another."""

from __future__ import annotations

from typing import Any

import pytest

from onward import Onward, State
from onward.core import record as r
from onward.core.journal.cuts import Cuts, slim
from onward.core.record import Record
from onward.errors import CannotFork, InvalidInput, TaskNotFound, UsageError
from tests.kit import Lab, dense


async def _seq(lab: Lab, task_id: str, kind: str, key: str = "") -> int:
    return next(x.seq for x in await lab.store.journal(task_id) if x.kind == kind and key in ("", x.key))


class Shop:
    """A handler with three steps, and the list of the steps it did."""

    def __init__(self, lab: Lab) -> None:
        self.did: list[str] = []
        self.keys: list[str] = []

        @lab.app.task
        async def buy(ctx: Any, item: str) -> str:
            async def do(name: str) -> str:
                self.did.append(name)
                self.keys.append(ctx.key)
                return f"{name} {item}"

            results = [await ctx.step(do, name, name=name) for name in ("find", "pay")]
            await ctx.sleep(30)
            results.append(await ctx.step(do, "send", name="send"))
            return ", ".join(results)


async def test_a_fork_inherits_earlier_steps_and_repeats_later_ones(lab: Lab) -> None:
    shop = Shop(lab)
    origin = await lab.run("buy", "a hat")
    cut = await _seq(lab, origin.task_id, r.STEP_DONE, "pay")
    plan = await lab.app.service.forks.plan(origin.task_id, cut)
    assert [(repeated.kind, repeated.step) for repeated in plan.again] == [("step", "send")]
    fork = await lab.app.fork(origin.task_id, at=cut)
    task = await lab.ended(fork.id)
    assert (task.state, task.result) == (State.COMPLETED, "find a hat, pay a hat, send a hat")
    assert shop.did == ["find", "pay", "send", "send"]
    assert shop.keys[-2:] == [f"{origin.task_id}:send", f"{fork.id}:send"], "another effect, under another key"
    assert await dense(lab.store, fork.id)
    assert (await lab.app.get(origin.task_id)) == origin
    assert (await lab.app.replay(fork.id)).agrees
    assert await lab.store.health.census() == []


async def test_every_place_where_it_can_be_cut_leads_to_the_same_end(lab: Lab) -> None:
    Shop(lab)
    origin = await lab.run("buy", "a hat")
    places = [record.seq for record in await lab.app.service.forks.places(origin.task_id)]
    head = (await lab.store.journal(origin.task_id))[-1].seq
    assert places == list(range(1, head)), "everywhere but after its end"
    for at in places:
        fork = await lab.app.fork(origin.task_id, at)
        assert (await lab.ended(fork.id)).result == origin.result


async def test_a_changed_input_begins_at_the_first_record(lab: Lab) -> None:
    shop = Shop(lab)
    origin = await lab.run("buy", "a hat")
    fork = await lab.app.fork(origin.task_id, input={"item": "a coat"})
    task = await lab.ended(fork.id)
    assert (task.input, task.result) == ({"item": "a coat"}, "find a coat, pay a coat, send a coat")
    assert len(shop.did) == 6
    assert (await lab.kinds(fork.id))[:3] == [r.SUBMITTED, r.FORKED, r.SHIFT]
    assert (await lab.app.fork(origin.task_id, 1, input="a scarf")).id
    with pytest.raises(UsageError, match="begins at the first record, not at 3"):
        await lab.app.fork(origin.task_id, 3, input="a scarf")
    with pytest.raises(InvalidInput):
        await lab.app.fork(origin.task_id, input={"item": 1})


async def test_forks_that_make_no_sense_are_refused(lab: Lab) -> None:
    Shop(lab)
    origin = await lab.run("buy", "a hat")
    head = (await lab.store.journal(origin.task_id))[-1].seq
    with pytest.raises(UsageError, match="say after which record"):
        await lab.app.fork(origin.task_id)
    with pytest.raises(TaskNotFound):
        await lab.app.fork("nobody", 1)
    with pytest.raises(CannotFork, match=f"after record 99: there is no such record; .* are {head - 1}$"):
        await lab.app.fork(origin.task_id, 99)
    with pytest.raises(CannotFork, match="it had ended"):
        await lab.app.fork(origin.task_id, head)


async def test_messages_are_read_once(lab: Lab) -> None:
    """One signal was taken before the cut, and one was unread. The fork has both, and goes on with the next number."""

    @lab.app.task
    async def work(ctx: Any) -> list[Any]:
        first = await ctx.signal("go")
        await ctx.sleep(5)
        return [first, await ctx.signal("go"), await ctx.signal("go")]

    await lab.start()
    task_id = await lab.submit(work)
    await lab.app.signal(task_id, "go", 1)
    await lab.app.signal(task_id, "go", 2)
    await lab.clock.until(lab.clock.sleep(8))
    assert (await lab.settled(task_id)).reason == "signal"
    fork = await lab.app.fork(task_id, await _seq(lab, task_id, r.SLEEP))
    await lab.app.signal(fork.id, "go", "of the fork")
    await lab.app.signal(task_id, "go", "of the origin")
    assert (await lab.ended(fork.id)).result == [1, 2, "of the fork"]
    assert (await lab.ended(task_id)).result == [1, 2, "of the origin"]


async def test_answered_questions_are_not_asked_again(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any) -> str:
        answer = await ctx.ask("which?")
        await ctx.sleep(5)
        return str(answer)

    await lab.start()
    task_id = await lab.submit(work)
    await lab.settled(task_id)
    open_ = await _seq(lab, task_id, r.QUESTION)
    with pytest.raises(CannotFork, match=r"it waits for 'question'; the nearest records .* are 2$"):
        await lab.app.fork(task_id, open_)
    (ask,) = await lab.app.asks()
    await lab.app.answer(ask.id, "this one")
    await lab.settled(task_id, no_more="question")
    fork = await lab.app.fork(task_id, await _seq(lab, task_id, r.WAITED))
    assert await lab.app.asks() == []
    assert (await lab.ended(fork.id)).result == "this one"
    assert [repeated.kind for repeated in (await lab.app.service.forks.plan(task_id, 2)).again] == ["question"]


async def test_no_cut_inside_a_saga_and_nothing_inherited_is_undone(lab: Lab) -> None:
    undone: list[str] = []

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> None:
        async def undo(name: str) -> None:
            undone.append(f"{ctx.task_id} {name}")

        async def do(name: str) -> None:
            pass

        async with ctx.saga("first"):
            await ctx.step(do, "a", name="a", undo=undo)
            await ctx.step(do, "b", name="b", undo=undo)
        async with ctx.saga("second"):
            await ctx.step(do, "c", name="c", undo=undo)
            raise ValueError("no")

    task = await lab.run(work)
    begin, end = await _seq(lab, task.task_id, r.SAGA), await _seq(lab, task.task_id, r.SAGA_DONE)
    for at in range(begin, end):
        with pytest.raises(CannotFork, match=f"inside the saga 'first'; the nearest .* are {begin - 1} and {end}$"):
            await lab.app.fork(task.task_id, at)
    fork = await lab.app.fork(task.task_id, end)
    assert (await lab.ended(fork.id)).state is State.FAILED
    assert undone == [f"{task.task_id} c", f"{fork.id} c"]


async def test_no_cut_while_a_child_is_open(lab: Lab) -> None:
    begun: list[str] = []

    @lab.app.task
    async def grow(ctx: Any, n: int) -> int:
        begun.append(ctx.task_id)
        await ctx.sleep(20)
        return n

    @lab.app.task
    async def work(ctx: Any) -> Any:
        child = await ctx.submit(grow, 7)
        await ctx.step(lambda: child.id, name="submit nothing")
        answer = await child
        await ctx.sleep(5)
        return [answer, await child]

    task = await lab.run(work)
    submitted = await _seq(lab, task.task_id, r.STEP_DONE, "submit grow")
    message = await _seq(lab, task.task_id, r.MESSAGE)
    waited = await _seq(lab, task.task_id, r.WAITED)
    for at in range(submitted, waited):
        with pytest.raises(CannotFork, match="child"):
            await lab.app.fork(task.task_id, at)
    assert submitted < message < waited
    fork = await lab.app.fork(task.task_id, waited)
    assert (await lab.ended(fork.id)).result == [7, 7]
    assert len(set(begun)) == 1, "the child is inherited with its result"
    plan = await lab.app.service.forks.plan(task.task_id, submitted - 1)
    assert [repeated.kind for repeated in plan.again] == ["child", "child"], (
        "anything of such a name may have started one"
    )


async def test_no_cut_where_an_effect_is_in_doubt(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any) -> None:
        async def pay() -> None:
            raise TimeoutError

        await ctx.step(lambda: 1, name="a")
        await ctx.step(pay, effect="once")

    await lab.start()
    task_id = await lab.submit(work)
    assert (await lab.settled(task_id)).reason == "in_doubt"
    with pytest.raises(CannotFork, match="the end of step 'pay' is not known yet"):
        await lab.app.fork(task_id, await _seq(lab, task_id, r.ANNOUNCED))
    assert (await lab.app.fork(task_id, await _seq(lab, task_id, r.STEP_DONE))).id


async def test_reconcile_is_not_called_for_effects_of_the_origin(lab: Lab) -> None:
    reconciled: list[str] = []

    @lab.app.task
    async def work(ctx: Any) -> Any:
        await ctx.step(lambda: 1, name="a")
        return await ctx.step(
            lambda: ctx.task_id, name="pay", reconcile=lambda: reconciled.append(ctx.task_id) or "before"
        )

    task = await lab.run(work)
    fork = await lab.app.fork(task.task_id, await _seq(lab, task.task_id, r.STEP_DONE, "a"))
    assert (await lab.ended(fork.id)).result == fork.id
    assert reconciled == []


async def test_the_time_of_a_fork_begins_with_it(lab: Lab) -> None:
    @lab.app.task(deadline=100)
    async def work(ctx: Any) -> str:
        await ctx.step(lambda: 1, name="a")
        await ctx.sleep(60)
        return "done"

    task = await lab.run(work)
    lab.clock.jump(500)
    fork = await lab.app.fork(task.task_id, await _seq(lab, task.task_id, r.STEP_DONE))
    shown = await lab.app.get(fork.id)
    assert shown.deadline_at is not None
    assert shown.deadline_at >= lab.clock.time + 99
    assert (await lab.ended(fork.id)).result == "done"


async def test_a_task_that_was_cancelled_or_failed_is_forked_before_that(lab: Lab) -> None:
    broken = True

    @lab.app.task(retry=1)
    async def work(ctx: Any) -> str:
        async def b() -> None:
            if broken:
                raise ValueError("no")

        await ctx.step(lambda: 1, name="a")
        await ctx.step(b)
        await ctx.sleep(50)
        return "done"

    failed = await lab.run(work)
    broken = False
    at = await _seq(lab, failed.task_id, r.STEP_DONE, "a")
    fork = await lab.app.fork(failed.task_id, at)
    await lab.settled(fork.id)
    await lab.app.cancel(fork.id)
    cancel = await _seq(lab, fork.id, r.CANCEL)
    with pytest.raises(CannotFork, match="it was being ended"):
        await lab.app.fork(fork.id, cancel)
    again = await lab.app.fork(fork.id, cancel - 1)
    assert (await lab.ended(again.id)).result == "done"
    assert (await lab.kinds(again.id)).count(r.FORKED) == 2, "a fork of a fork"


async def test_a_fork_on_every_store(app: Onward) -> None:
    did: list[str] = []

    @app.task
    async def work(ctx: Any) -> list[Any]:
        async def do(name: str) -> str:
            did.append(name)
            return name

        return [await ctx.step(do, name, name=name) for name in "abc"]

    async with app.worker():
        origin = await app.submit(work, group="mine")
        assert await origin.result(timeout=60) == ["a", "b", "c"]
        records = await app.store.journal(origin.id)
        at = next(record.seq for record in records if record.key == "a")
        fork = await app.fork(origin.id, at)
        assert await fork.result(timeout=60) == ["a", "b", "c"]
    assert (await fork.get()).group == "mine", "it takes its turn with the others"
    assert did == ["a", "b", "c", "b", "c"]


def test_a_cut_checks_all_open_waits() -> None:
    def record(seq: int, kind: str, key: str = "", data: bytes = b"{}") -> Record:
        return Record(seq, 2, kind, key, data, 0.0)

    cuts = Cuts(
        [
            record(1, r.SUBMITTED),
            record(2, r.SHIFT),
            record(3, r.SAGA, "saga"),
            record(4, r.SAGA, "[saga]saga"),
            record(5, r.UNDONE, "[saga]saga"),
            record(6, r.UNDONE, "saga"),
            record(7, r.APPROVAL, "approval"),
            record(8, r.QUESTION, "[gather.0]question"),
            record(9, r.WAITED, "approval"),
            record(10, r.WAITED, "[gather.0]question"),
            record(11, r.SIGNAL, "signal go"),
            record(12, r.FAILED),
            record(13, r.RESUMED),
        ]
    )
    assert [place.seq for place in cuts.places()] == [1, 2, 6, 10, 11, 13]
    assert (cuts.near(4), cuts.near(1), cuts.near(12)) == ([2, 6], [2], [11, 13])


async def test_a_journal_without_its_large_payloads_is_cut_at_the_same_places(lab: Lab) -> None:
    @lab.app.task
    async def leaf(ctx: Any) -> str:
        return "x" * 1000

    @lab.app.task
    async def work(ctx: Any) -> None:
        child = await ctx.submit("leaf")
        await ctx.step(lambda: "x" * 10_000, name="large")
        await ctx.approve("pay", data={"sum": "9" * 5_000})
        await ctx.signal("go")
        await child.result()

    await lab.start()
    task_id = await lab.submit("work")
    await lab.settled(task_id)
    (ask,) = await lab.app.asks("approval")
    await lab.app.decide(ask.id, "approve")
    await lab.app.signal(task_id, "go", "y" * 5_000)
    await lab.ended(task_id)
    records = list(await lab.store.journal(task_id))
    small = [slim(record) for record in records]
    before, after = [sum(len(record.data) for record in journal) for journal in (records, small)]
    assert before > 20_000
    assert after < 2_000
    children = frozenset(Cuts(records).started())
    assert len(children) == 1
    full, light = Cuts(records, children), Cuts(small, children)
    assert light.started() == full.started()
    assert [record.seq for record in light.places()] == [record.seq for record in full.places()]
    for record in records:
        at = record.seq
        for question in (Cuts.why_not, Cuts.near, Cuts.inbox, Cuts.approved, Cuts.again):
            assert question(light, at) == question(full, at), (question, at)  # type: ignore[operator]
    assert full.approved(records[-1].seq) != []
