"""check and replay: they run handlers over journals with no effects, whatever the code of the handler does."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from onward import Budget, Fatal, Onward, State
from onward.core import record as r
from onward.engine.check.deploy_check import Finding, Verdict
from onward.errors import Denied, TaskNotFound, UnknownTask
from tests.kit import Lab, eventually


async def _echo(n: Any) -> Any:
    return n


async def _waiting_task(lab: Lab, body: Any, *, value: Any = None, reason: str = "asleep") -> tuple[str, list[Any]]:
    """A task that waits for `reason`, and the list to which a test adds another version of its handler."""
    versions = [body]

    @lab.app.task(retry=1)
    async def work(ctx: Any, n: Any = None) -> Any:
        return await versions[-1](ctx)

    if not lab.workers:
        await lab.start()
    task_id = await lab.submit(work, value)
    assert (await lab.settled(task_id)).reason == reason
    return task_id, versions


async def _before(ctx: Any) -> str:
    await ctx.step(_echo, 1, name="a")
    await ctx.step(_echo, 2, name="b")
    await ctx.sleep(100)
    return "done"


async def _one(app: Onward, **options: Any) -> Finding:
    (finding,) = await app.check(**options)
    return finding


# ── check ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_finding_names_both_steps_and_nothing_is_written(lab: Lab) -> None:
    task_id, versions = await _waiting_task(lab, _before)
    before = await lab.store.journal(task_id), await lab.app.get(task_id)

    async def after(ctx: Any) -> str:
        await ctx.step(_echo, 1, name="a")
        await ctx.step(_echo, 3, name="x")
        return "done"

    fine = await _one(lab.app)
    assert (fine.task_id, fine.task, fine.state, fine.reason) == (task_id, "work", State.WAITING, "asleep")
    assert (fine.verdict, fine.detail) == (Verdict.FINE, "goes on with 'sleep'")
    versions.append(after)
    finding = await _one(lab.app)
    assert finding.verdict is Verdict.PARKS
    assert "the code asks for step 'x' where the journal has 'b'" in finding.detail
    assert (await lab.store.journal(task_id), await lab.app.get(task_id)) == before


async def test_a_handler_that_raises_does_not_end_the_check(lab: Lab) -> None:
    _, versions = await _waiting_task(lab, _before)

    async def raises(error: BaseException, ctx: Any) -> None:
        await ctx.step(_echo, 1, name="a")
        raise error

    for error in (ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), RecursionError()):
        versions.append(lambda ctx, error=error: raises(error, ctx))
        finding = await _one(lab.app)
        assert finding.verdict is Verdict.RAISES
        assert type(error).__name__ in finding.detail
        assert "before it asks for step 'b'" in finding.detail


@pytest.mark.slow
@pytest.mark.parametrize("how", ["waits", "sleeps", "waits and does not heed", "a plain function sleeps"])
async def test_a_handler_that_hangs_does_not_hang_the_check(lab: Lab, how: str) -> None:
    release: list[bool] = []

    async def hangs(ctx: Any) -> None:
        await ctx.step(_echo, 1, name="a")
        while not release:
            try:
                await asyncio.sleep(0.05) if "waits" in how else time.sleep(0.05)  # noqa: ASYNC251
            except asyncio.CancelledError:
                if how == "waits":
                    raise

    def plain(ctx: Any) -> None:
        ctx.step(_echo, 1, name="a")
        while not release:
            time.sleep(0.05)

    _, versions = await _waiting_task(lab, _before)
    for _ in range(3):
        await lab.submit("work")
    for task in (await lab.app.list())[0]:
        await lab.settled(task.task_id)
    versions.append(hangs)
    if "plain" in how:
        lab.app.handlers["work"] = lab.app.handlers["work"].__class__("work", plain)
    async with asyncio.timeout(60):
        findings = await lab.app.check(patience=0.2)
    release.append(True)
    assert [finding.verdict for finding in findings] == [Verdict.HANGS] * 4
    assert "not through after 0.2 s" in findings[0].detail
    assert "not tried" in findings[-1].detail, "a handler that hangs does so for all of its tasks"


async def test_a_handler_that_catches_everything(lab: Lab) -> None:
    _, versions = await _waiting_task(lab, _before)

    async def stubborn(ctx: Any) -> str:
        for name in ("a", "z", "y"):
            try:
                await ctx.step(_echo, 1, name=name)
            except BaseException:
                continue
        return "I am fine"

    versions.append(stubborn)
    finding = await _one(lab.app)
    assert finding.verdict is Verdict.PARKS
    assert "step 'z' where the journal has 'b'" in finding.detail


async def test_a_task_whose_handler_is_gone_and_one_whose_input_does_not_fit(lab: Lab) -> None:
    await _waiting_task(lab, _before)

    async def other(ctx: Any, number: int) -> None:
        """Takes another input than the tasks have."""

    handler = lab.app.handlers.pop("work")
    unknown = await _one(lab.app)
    assert (unknown.verdict, unknown.detail) == (Verdict.UNKNOWN, "this app has no handler 'work'")
    lab.app.handlers["work"] = handler.__class__("work", other)
    finding = await _one(lab.app)
    assert finding.verdict is Verdict.RAISES
    assert "does not take the input" in finding.detail


async def test_plain_functions_sagas_and_progress(lab: Lab) -> None:
    steps: list[int] = []

    @lab.app.task
    def plain(ctx: Any) -> str:
        with ctx.saga():
            ctx.step(lambda: steps.append(1), name="a")
            ctx.progress("half", 1, 2)
            ctx.gather(*[ctx._context.step(_echo, n) for n in range(3)])
        ctx.sleep(1000)
        ctx.step(lambda: steps.append(2), name="b")
        return "done"

    await lab.start()
    task_id = await lab.submit(plain)
    await lab.settled(task_id)
    assert (await _one(lab.app)).verdict is Verdict.FINE
    assert steps == [1]


async def test_every_state_of_unfinished_tasks_is_looked_at(app: Onward) -> None:
    """On every store: waiting, delayed, parked, in the middle of a step."""
    gate, opened = asyncio.Event(), asyncio.Event()

    @app.task
    async def nap(ctx: Any) -> None:
        await ctx.sleep(1000)

    @app.task
    async def busy(ctx: Any) -> None:
        async def wait() -> None:
            gate.set()
            await opened.wait()

        await ctx.step(_echo, 1)
        await ctx.step(wait)

    @app.task
    async def done(ctx: Any) -> None:
        """Ends at once."""

    async with app.worker():
        ids = [(await app.submit(name)).id for name in (nap, busy)]
        ids.append((await app.submit(nap, delay=1000)).id)
        await (await app.submit(done)).result(timeout=60)
        await gate.wait()

        async def asleep() -> bool:
            return (await app.get(ids[0])).reason == "asleep"

        await eventually(asleep)
        progress: list[tuple[int, int]] = []
        findings = await app.check(lambda done, of: progress.append((done, of)))
        opened.set()
    assert {finding.task_id: finding.verdict for finding in findings} == dict.fromkeys(ids, Verdict.FINE)
    assert {finding.reason for finding in findings} == {"asleep", "running", "delayed"}
    assert progress == [(0, 3), (1, 3), (2, 3), (3, 3)]


# ── replay ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _ended(lab: Lab, body: Any, **options: Any) -> tuple[str, list[Any]]:
    versions = [body]

    @lab.app.task(**{"retry": 1, **options})
    async def work(ctx: Any) -> Any:
        return await versions[-1](ctx)

    return (await lab.run(work)).task_id, versions


async def test_a_completed_task_is_replayed(lab: Lab) -> None:
    effects: list[str] = []

    async def body(ctx: Any) -> Any:
        async def happen(name: str) -> str:
            effects.append(name)
            return name

        first = await ctx.step(happen, "a")
        both = await ctx.gather(ctx.step(happen, "b"), ctx.step(happen, "c"))
        await ctx.sleep(30)
        return {"first": first, "both": tuple(both), "at": await ctx.now(), "id": await ctx.uuid()}

    task_id, versions = await _ended(lab, body)
    answer = await lab.app.replay(task_id)
    assert (answer.agrees, answer.detail) == (True, "it returns the same result")
    assert effects == ["a", "b", "c"]

    async def another_result(ctx: Any) -> Any:
        return {**await body(ctx), "first": "z"}

    async def goes_further(ctx: Any) -> Any:
        result = await body(ctx)
        await ctx.step(lambda: effects.append("more"), name="more")
        return result

    async def raises(ctx: Any) -> Any:
        await body(ctx)
        raise ValueError("at the end")

    async def changed(ctx: Any) -> Any:
        await ctx.sleep(1)

    for version, says in [
        (another_result, "the handler returns {'first': 'z'"),
        (goes_further, "the code asks for step 'more' where the journal has come to its end"),
        (raises, "the handler raises ValueError: at the end where the task completed"),
        (changed, "the code asks for step 'sleep' where the journal has 'happen'"),
    ]:
        versions.append(version)
        answer = await lab.app.replay(task_id)
        assert not answer.agrees
        assert answer.detail.startswith(says), answer.detail
    assert effects == ["a", "b", "c"]


async def test_a_failed_task_is_replayed(lab: Lab) -> None:
    async def broken() -> None:
        raise Fatal("out of paper")

    async def body(ctx: Any) -> None:
        async with ctx.saga():
            await ctx.step(_echo, 1, name="a", undo=_echo)
            await ctx.step(broken)

    task_id, versions = await _ended(lab, body)
    assert (await lab.app.get(task_id)).state is State.FAILED
    assert r.UNDONE in await lab.kinds(task_id)
    answer = await lab.app.replay(task_id)
    assert (answer.agrees, answer.detail) == (True, "it fails with the same error")

    async def caught(ctx: Any) -> str:
        try:
            await body(ctx)
        except Exception:
            return "never mind"
        return ""

    versions.append(caught)
    answer = await lab.app.replay(task_id)
    assert not answer.agrees
    assert answer.detail.startswith("the handler returns 'never mind' where the task failed: step '[saga]broken'")


async def test_a_task_that_failed_in_its_third_attempt_and_one_that_was_denied(lab: Lab) -> None:
    async def body(ctx: Any) -> None:
        await ctx.step(_echo, 1)
        raise OSError("no way")

    task_id, _ = await _ended(lab, body, retry=3)
    assert (await lab.app.get(task_id)).attempt == 3
    assert (await lab.app.replay(task_id)).agrees

    @lab.app.task(retry=1)
    async def asks(ctx: Any) -> None:
        await ctx.approve("shall I?", timeout=60)

    task = await lab.run(asks)
    assert (task.error or {})["type"] == Denied.__name__
    assert (await lab.app.replay(task.task_id)).agrees


async def test_tasks_that_were_ended_from_outside_and_unfinished_ones(lab: Lab) -> None:
    task_id, _ = await _waiting_task(lab, _before)
    answer = await lab.app.replay(task_id)
    assert (answer.agrees, answer.detail) == (True, "as far as it has come; it goes on with 'sleep'")
    await lab.app.cancel(task_id)
    answer = await lab.app.replay(task_id)
    assert (answer.agrees, answer.state) == (True, State.CANCELLED)

    @lab.app.task(deadline=20)
    async def late(ctx: Any) -> None:
        async with ctx.saga():
            await ctx.step(_echo, 1, undo=_echo)
            await ctx.sleep(100)

    task = await lab.run(late)
    assert (task.error or {})["type"] == "DeadlineExceeded"
    assert (await lab.app.replay(task.task_id)).agrees


async def test_what_cannot_be_replayed(lab: Lab) -> None:
    task_id, _ = await _ended(lab, _before)
    lab.app.handlers.clear()
    with pytest.raises(UnknownTask):
        await lab.app.replay(task_id)
    with pytest.raises(TaskNotFound):
        await lab.app.replay("nobody")


async def test_a_dry_run_reads_kept_contents_and_artifacts(app: Onward) -> None:
    """A handler that reads its kept contents, and an agent, which does so at every turn."""
    from onward.agent.models.scripted import ScriptedModel

    @app.task
    async def reader(ctx: Any) -> str:
        name = await ctx.step(lambda: ctx.keep("kept"), name="keep")
        ref = await ctx.artifact("left")
        return (await ctx.kept(name))[0].decode() + (await ctx.read_artifact(ref)).decode()

    turns = [[("update_plan", {"plan": ["look"]})], "done"]
    agent = app.agent("agent", model=ScriptedModel(turns))
    async with app.worker():
        tasks = [await app.submit(reader), await app.submit(agent, "Look.")]
        assert [await task.result(timeout=60) for task in tasks] == ["keptleft", "done"]
    for task in tasks:
        report = await app.replay(task.id)
        assert (report.agrees, report.detail) == (True, "it returns the same result")


async def test_an_agent_is_checked_like_any_other(app: Onward) -> None:
    """The conversation is kept beside the journal: a dry run reads it there, and writes nothing."""
    from onward.agent.models.scripted import ScriptedModel

    def script() -> ScriptedModel:
        return ScriptedModel([[("update_plan", {"plan": ["ask"]})], [("ask_user", {"question": "Go on?"})], "done"])

    app.agent("devops", model=script())
    async with app.worker():
        handle = await app.submit("devops", "Fix it.")
        (ask,) = await eventually(app.asks)
        (finding,) = await app.check()
        assert (finding.verdict, finding.detail) == ("fine", "goes on with 'question'")
        await app.answer(ask.id, "yes")
        assert await handle.result(timeout=60) == "done"
        assert (await app.replay(handle.id)).agrees


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"instructions": "Another voice."}, Verdict.FINE),
        ({"model": "openai:gpt-5-mini"}, Verdict.FINE),
        ({"budget": Budget(max_steps=50)}, Verdict.FINE),
        ({"approval_timeout": "1h"}, Verdict.FINE),
        ({"tools": ["touch", "look"]}, Verdict.FINE),
        ({"approve": []}, Verdict.PARKS),
        ({"tools": ["look"]}, Verdict.PARKS),
    ],
    ids=str,
)
async def test_which_changes_of_an_agent_park_its_tasks(lab: Lab, changed: dict[str, Any], verdict: Verdict) -> None:
    """The statements of the guide on changing code about agents."""
    from onward.agent.models.scripted import ScriptedModel
    from onward.agent.tools import tool

    @tool(risk="write_local", idempotent=True)
    def touch() -> str:
        """Touch it."""
        return "touched"

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    box = {"touch": touch, "look": look}
    options: dict[str, Any] = {
        "model": ScriptedModel([[("touch", {})], "done"]),
        "tools": ["touch"],
        "approve": ["write_local"],
    }
    lab.app.agent("keeper", **options | {"tools": [touch]})
    await lab.start()
    task_id = await lab.submit("keeper", "go")
    assert (await lab.settled(task_id)).reason == "approval"
    del lab.app.handlers["keeper"], lab.app._agents["keeper"]
    now = options | changed
    lab.app.agent("keeper", **now | {"tools": [box[name] for name in now["tools"]]})
    assert (await _one(lab.app)).verdict is verdict
