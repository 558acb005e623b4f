"""Traces: one span for each executed step, none for replayed ones, all in the trace of the caller."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import types

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from onward import Onward, Retry, telemetry, tool
from onward.agent.model import Reply, ToolCall, Usage
from onward.agent.models.scripted import ScriptedModel
from onward.agent.prices import Prices
from onward.core import mask, wire
from onward.engine.shift import traced
from onward.errors import StepFailed
from onward.telemetry import incoming, outgoing, span_id_of, trace_id_of, tracer
from tests.kit import Lab, only_memory
from tests.server.conftest import serving
from tests.telemetry.conftest import Spans, attribute, provide

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def one(n: int = 1) -> int:
    return n


def trace_ids(spans: Spans) -> set[int]:
    return {span.context.trace_id for span in spans.all}


async def options_of(app: Onward, task_id: str) -> dict[str, object]:
    query = "SELECT options FROM onward_tasks WHERE id = ?"
    ((options,),) = await app.store._db.reading(lambda c: list(c.execute(query, (task_id,))))
    return wire.decode(options)


# ── executed steps ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_is_a_submit_its_shift_and_its_steps(app: Onward, spans: Spans):
    @app.task
    async def work(ctx):
        await ctx.step(one)
        await ctx.step(one, 2, name="two")
        return 3

    with trace.get_tracer("caller").start_as_current_span("caller") as caller:
        task = await app.submit(work)
    async with app.worker():
        assert await task.result(timeout=60) == 3
    submit, shift = spans.single("submit work"), spans.single("invoke_workflow work")
    assert submit.parent.span_id == caller.get_span_context().span_id
    assert submit.kind is trace.SpanKind.PRODUCER
    assert shift.parent.span_id == submit.context.span_id
    assert {span.parent.span_id for span in spans.named("onward.step")} == {shift.context.span_id}
    assert len(trace_ids(spans)) == 1
    assert spans.steps() == [("one", "completed"), ("two", "completed")]
    assert attribute(shift, "gen_ai.operation.name") == "invoke_workflow"
    assert attribute(shift, "gen_ai.workflow.name") == "work"
    assert attribute(shift, "onward.task.id") == task.id == attribute(submit, "onward.task.id")
    assert attribute(shift, "onward.outcome") == "completed"
    assert shift.context.span_id == span_id_of(task.id, 2)


async def test_spans_inside_a_step_are_below_it_in_threads_and_branches_too(app: Onward, spans: Spans):
    def plain(n: int) -> int:
        with trace.get_tracer("user").start_as_current_span(f"query {n}"):
            return n

    @app.task
    async def work(ctx):
        await ctx.gather(ctx.step(plain, 1), ctx.step(plain, 2))

    @app.task
    def plainly(ctx):
        ctx.step(plain, 3)

    async with app.worker():
        await (await app.submit(work)).result(timeout=60)
        await (await app.submit(plainly)).result(timeout=60)
    steps = {span.context.span_id: span for span in spans.named("onward.step")}
    above = {span.name: attribute(steps[span.parent.span_id], "onward.step.key") for span in spans.named("query")}
    assert above == {"query 1": "[gather.0]plain", "query 2": "[gather.1]plain", "query 3": "plain"}


async def test_a_failed_step_and_its_attempts(lab: Lab, spans: Spans):
    tries = []

    async def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return "there"

    async def hopeless() -> None:
        raise ValueError("no")

    @lab.app.task(retry=1)
    async def work(ctx):
        await ctx.step(flaky, retry=Retry(attempts=3, first=0.1))
        await ctx.step(hopeless)

    await lab.start()
    task_id = await lab.submit(work)
    assert (await lab.ended(task_id)).state == "failed"
    assert spans.steps() == [("flaky", "completed"), ("hopeless", "failed")]
    shift = spans.single("invoke_workflow")
    assert [(event.name, event.attributes["onward.attempt"]) for event in shift.events] == [
        ("onward.retry", 1),
        ("onward.retry", 2),
    ]
    assert shift.status.status_code is trace.StatusCode.ERROR
    assert attribute(shift, "error.type") == "StepFailed"
    assert attribute(spans.named("onward.step")[1], "error.type") == "ValueError"


async def test_transactions_are_steps(app: Onward, spans: Spans):
    async def pay(connection) -> int:
        await connection.execute("SELECT 1")
        return 1

    @app.task
    async def work(ctx):
        await ctx.transaction(pay)
        async with ctx.transaction(name="block") as connection:
            await connection.execute("SELECT 1")
        with pytest.raises(StepFailed):
            async with ctx.transaction(name="broken"):
                _ = 1 / 0
        await ctx.sleep("1.1s")

    async with app.worker():
        await (await app.submit(work)).result(timeout=60)
    assert spans.steps() == [("pay", "completed"), ("block", "completed"), ("broken", "failed")]
    assert len(spans.named("invoke")) == 2


# ── replay, crash, fence ─────────────────────────────────────────────────────────────────────────────────────────────


async def walk(lab: Lab) -> str:
    """Runs a task through a sleep, a signal, a crash and a saga: five shifts."""
    began = asyncio.Event()

    async def slow() -> None:
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()

    @lab.app.task
    async def work(ctx):
        await ctx.step(one)
        await ctx.sleep("3s")
        await ctx.signal("go")
        async with ctx.saga():
            await ctx.step(one, undo=one)
        await ctx.gather(ctx.step(one, 1), ctx.step(one, 2))
        await ctx.step(slow)
        await ctx.step(one)

    await lab.start()
    task_id = await lab.submit(work)
    await lab.settled(task_id)
    await lab.settled(task_id, within=60, no_more="asleep")
    await lab.app.signal(task_id, "go")
    await lab.clock.until(began.wait(), 60)
    await lab.crash()
    await lab.start()
    await lab.ended(task_id)
    return task_id


STEPS = ["one", "[saga]one", "[gather.0]one", "[gather.1]one", "slow", "one#2"]


async def test_no_step_has_two_spans_and_every_shift_joins_the_trace(lab: Lab, spans: Spans):
    task_id = await walk(lab)
    done = [key for key, outcome in spans.steps() if outcome == "completed"]
    assert sorted(done) == sorted(STEPS)
    assert len(trace_ids(spans)) == 1
    shifts = spans.named("invoke_workflow")
    numbers = [record.seq for record in await lab.store.journal(task_id) if record.kind == "shift.started"]
    assert [int(attribute(span, "onward.shift")) for span in shifts] == numbers
    linked = [[link.context.span_id for link in span.links] for span in shifts]
    assert linked == [[], *([span_id_of(task_id, number)] for number in numbers[:-1])]
    assert {link.context.trace_id for span in shifts for link in span.links} == trace_ids(spans)
    assert [attribute(span, "onward.outcome") for span in shifts] == ["asleep", "signal", "lost", "completed"]
    waits = [(event.name, event.attributes["onward.step.key"]) for span in shifts for event in span.events]
    assert waits == [
        ("onward.wait", "sleep"),
        ("onward.waited", "sleep"),
        ("onward.wait", "signal go"),
        ("onward.waited", "signal go"),
    ]


async def test_a_span_for_a_replayed_step_would_be_found(lab: Lab, spans: Spans, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(traced, "is_replayed", lambda _replay, _scope: False)
    await walk(lab)
    done = [key for key, outcome in spans.steps() if outcome == "completed"]
    assert sorted(done) != sorted(STEPS)


async def test_a_fenced_worker_reports_no_success(lab: Lab, spans: Spans):
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def pay() -> str:
        inside.set()
        await go_on.wait()
        return "paid"

    @lab.app.task
    async def work(ctx):
        return await ctx.step(pay)

    await lab.start()
    task_id = await lab.submit(work)
    await lab.clock.until(inside.wait(), 10)
    await lab.store.cancel(task_id)
    go_on.set()
    await lab.clock.until(_until(lambda: spans.named("invoke")), 10)
    assert spans.steps() == [("pay", "lost")]
    assert spans.single("onward.step").status.status_code is trace.StatusCode.ERROR
    assert attribute(spans.single("invoke_workflow"), "onward.outcome") == "lost"
    assert spans.single("invoke_workflow").status.status_code is trace.StatusCode.ERROR


async def test_a_step_that_never_began_has_no_span(lab: Lab, spans: Spans):
    """The handler was changed: the journal has another step at this place, and the task parks."""

    @lab.app.task
    async def work(ctx):
        await ctx.step(one, name="new" if ctx.attempt_of_test else "old")
        await ctx.sleep("3s")

    from onward.engine.context.context import Context

    Context.attempt_of_test = False
    try:
        await lab.start()
        task_id = await lab.submit(work)
        await lab.settled(task_id)
        Context.attempt_of_test = True
        parked = await lab.settled(task_id, within=60, no_more="asleep")
    finally:
        del Context.attempt_of_test
    assert parked.reason == "parked"
    assert spans.steps() == [("old", "completed")]
    assert [attribute(span, "onward.outcome") for span in spans.named("invoke")] == ["asleep", "parked"]


# ── the trace of a task ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_children_are_part_of_it(app: Onward, spans: Spans):
    @app.task
    async def child(ctx):
        await ctx.step(one)

    @app.task
    async def work(ctx):
        await (await ctx.submit(child))

    async with app.worker():
        await (await app.submit(work)).result(timeout=60)
    assert len(trace_ids(spans)) == 1
    submit = spans.single("submit child")
    assert submit.parent.span_id == spans.single("onward.step submit child").context.span_id
    assert spans.single("invoke_workflow child").parent.span_id == submit.context.span_id


@only_memory
async def test_a_trace_is_carried_without_opentelemetry(app: Onward):
    """A later worker or a webhook gets the trace, although this server and worker have no OpenTelemetry."""

    @app.task
    async def child(ctx): ...

    @app.task
    async def work(ctx):
        return (await ctx.submit(child)).id

    assert tracer() is None
    headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        answer = await client.post("/api/tasks", json={"task": "work"}, headers=headers)
        broken = await client.post("/api/tasks", json={"task": "child"}, headers={"traceparent": "00-nonsense"})
    assert (answer.status_code, broken.status_code) == (202, 202)
    task_id = answer.json()["task_id"]
    async with app.worker():
        child_id = await app.handle(task_id).result(timeout=60)
    assert (await options_of(app, task_id))["trace"] == headers
    assert (await options_of(app, child_id))["trace"] == headers
    assert "trace" not in await options_of(app, broken.json()["task_id"])
    assert outgoing(task_id, await options_of(app, task_id)) == headers


async def test_the_trace_of_a_request_over_http(app: Onward, spans: Spans):
    @app.task
    async def work(ctx): ...

    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        answer = await client.post("/api/tasks", json={"task": "work"}, headers={"traceparent": PARENT})
    async with app.worker():
        await app.handle(answer.json()["task_id"]).result(timeout=60)
    assert f"{spans.single('submit work').parent.span_id:016x}" == PARENT.split("-")[2]
    assert {f"{trace_id:032x}" for trace_id in trace_ids(spans)} == {PARENT.split("-")[1]}


async def test_a_task_that_came_without_a_trace_has_its_own(lab: Lab, spans: Spans):
    @lab.app.task
    async def work(ctx):
        await ctx.sleep("3s")

    provide_again = trace.get_tracer_provider()
    provide(None)
    task_id = await lab.submit(work)
    provide(provide_again)
    await lab.start()
    await lab.ended(task_id, within=60)
    assert [span.name for span in spans.all] == ["invoke_workflow work"] * 2
    assert trace_ids(spans) == {trace_id_of(task_id)}
    assert [span.parent for span in spans.all] == [None, None]
    assert outgoing(task_id, {})["traceparent"].split("-")[1] == f"{trace_id_of(task_id):032x}"


async def test_tasks_do_not_join_the_span_in_which_their_worker_started(lab: Lab, spans: Spans):
    @lab.app.task
    async def work(ctx): ...

    with trace.get_tracer("main").start_as_current_span("main") as main:
        await lab.start()
    task_id = await lab.submit(work)
    await lab.ended(task_id)
    assert spans.single("invoke_workflow").context.trace_id != main.get_span_context().trace_id
    assert spans.single("invoke_workflow").parent.span_id == spans.single("submit").context.span_id


@only_memory
async def test_the_same_key_with_another_trace_is_the_same_task(app: Onward, spans: Spans):
    @app.task
    async def work(ctx): ...

    first = await app.submit(work, key="k")
    with trace.get_tracer("caller").start_as_current_span("another"):
        second = await app.submit(work, key="k")
    assert first.id == second.id


async def test_an_unsampled_trace_is_not_exported_and_passed_on_as_unsampled(lab: Lab, spans: Spans):
    provider = TracerProvider(sampler=ALWAYS_OFF)
    provide(provider)

    @lab.app.task
    async def work(ctx):
        await ctx.step(one)

    await lab.start()
    task_id = await lab.submit(work)
    await lab.ended(task_id)
    ((options,),) = await lab.store._db.reading(lambda c: list(c.execute("SELECT options FROM onward_tasks")))
    assert int(wire.decode(options)["trace"]["traceparent"][-2:], 16) & trace.TraceFlags.SAMPLED == 0
    assert spans.all == []


@pytest.mark.parametrize(
    ("header", "fits"),
    [
        (PARENT, True),
        (f" {PARENT} ", True),
        (f"cc{PARENT[2:]}-what-will-be", True),
        (f"ff{PARENT[2:]}", False),
        (f"{PARENT}-more", False),
        (PARENT.upper(), False),
        ("00-" + "0" * 32 + PARENT[35:], False),
        (f"{PARENT[:36]}{'0' * 16}-01", False),
        ("", False),
        ("nonsense", False),
        (PARENT[:-1], False),
    ],
)
def test_traceparent_as_w3c_has_it(header: str, fits: bool):
    assert (incoming({"traceparent": header}) is not None) is fits


def test_an_invalid_tracestate_is_left_out():
    assert incoming({"traceparent": PARENT, "tracestate": "a=1,b=2"}) == {
        "traceparent": PARENT,
        "tracestate": "a=1,b=2",
    }
    assert incoming({"traceparent": PARENT, "tracestate": "x" * 513}) == {"traceparent": PARENT}
    assert incoming({"tracestate": "a=1"}) is None


# ── agents ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@tool
def look(path: str) -> str:
    """Look."""
    with trace.get_tracer("user").start_as_current_span("disk"):
        return f"{path}: secret"


def agent_in(lab: Lab) -> ScriptedModel:
    script = [
        Reply("", (ToolCall("call_1", "look", '{"path": "/a"}'),), Usage(100, 20, 30), "tool_calls"),
        Reply("done", (), Usage(200, 10), "stop", "scripted-2026"),
    ]
    model = ScriptedModel(script)
    model.prices = Prices(1.0, 2.0)
    lab.app.agent("janitor", model=model, tools=[look], instructions="be kind")
    return model


async def test_an_agent_by_the_conventions(lab: Lab, spans: Spans):
    agent_in(lab)
    await lab.start()
    task_id = await lab.submit("janitor", "clean up")
    assert (await lab.ended(task_id)).result == "done"
    shift = spans.single("invoke_agent janitor")
    assert attribute(shift, "gen_ai.agent.name") == "janitor"
    assert attribute(shift, "gen_ai.conversation.id") == task_id
    first, second = spans.named("chat scripted")
    assert dict(first.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "scripted",
        "gen_ai.provider.name": "custom",
        "gen_ai.agent.name": "janitor",
        "gen_ai.conversation.id": task_id,
        "onward.task.id": task_id,
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 30,
        "onward.cost_usd": pytest.approx(0.00014),
    }
    assert second.attributes["gen_ai.response.model"] == "scripted-2026"
    called = spans.single("execute_tool look")
    assert attribute(called, "gen_ai.tool.call.id") == "call_1"
    assert spans.single("disk").parent.span_id == called.context.span_id
    steps = {span.context.span_id: attribute(span, "onward.step.key") for span in spans.named("onward.step")}
    assert [steps[span.parent.span_id] for span in (first, called, second)] == ["model", "look", "model#2"]
    everything = json.dumps([[dict(span.attributes), span.name] for span in spans.all], default=str)
    assert "secret" not in everything
    assert "clean up" not in everything
    assert "/a" not in everything


async def test_messages_are_exported_only_where_that_is_allowed(
    lab: Lab, spans: Spans, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    agent_in(lab)
    await lab.start()
    await lab.ended(await lab.submit("janitor", "clean up"))
    first, second = spans.named("chat scripted")
    (message,) = json.loads(first.attributes["gen_ai.input.messages"])
    assert message["role"] == "user"
    assert message["parts"][0]["content"].startswith("clean up\n\n"), "the state follows"
    assert "be kind" in first.attributes["gen_ai.system_instructions"]
    assert json.loads(second.attributes["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "done"}], "finish_reason": "stop"}
    ]
    called = spans.single("execute_tool look")
    assert json.loads(called.attributes["gen_ai.tool.call.arguments"]) == {"path": "/a"}
    assert called.attributes["gen_ai.tool.call.result"] == "/a: secret"


async def test_a_model_call_from_before_a_crash_has_no_second_span(lab: Lab, spans: Spans):
    agent_in(lab)
    await lab.start()
    task_id = await lab.submit("janitor", "clean up")
    await lab.clock.until(_until(lambda: spans.named("execute_tool")), 60)
    await lab.crash()
    await lab.start()
    await lab.ended(task_id)
    done = [key for key, outcome in spans.steps() if outcome == "completed"]
    assert len(done) == len(set(done))
    assert len(trace_ids(spans)) == 1


async def _until(condition) -> None:
    while not condition():  # noqa: ASYNC110 -- an exporter has no event
        await asyncio.sleep(0)


async def test_a_secret_is_in_no_span(lab: Lab, spans: Spans, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    mask.learn("token", "hunter2-hunter2")
    mask.learn("found", "/a: secret")

    async def breaks() -> None:
        raise ValueError("refused: hunter2-hunter2")

    @lab.app.task(retry=1)
    async def work(ctx):
        await ctx.step(breaks, name="with hunter2-hunter2")

    agent_in(lab)
    await lab.start()
    await lab.ended(await lab.submit(work))
    await lab.ended(await lab.submit("janitor", "clean up"))
    everything = "".join(span.to_json() for span in spans.all)
    assert "hunter2" not in everything
    assert "/a: secret" not in everything
    assert spans.single("execute_tool look").attributes["gen_ai.tool.call.result"] == "[secret found]"
    assert [span.name for span in spans.named("onward.step with")] == ["onward.step with [secret token]"]


# ── off ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

OFF = """
import asyncio, sys
from onward import Onward
app = Onward("sqlite://:memory:")
async def one(): return 1
@app.task
async def work(ctx):
    return await ctx.step(one)
async def main():
    async with app, app.worker() as worker:
        shifts, begin = set(), worker.begin
        worker.begin = lambda claimed: (begin(claimed), shifts.update(type(one).__name__ for one in worker._shifts.values()))
        await (await app.submit(work)).result(timeout=60)
    print(*shifts, *sorted({name.partition(".")[0] for name in sys.modules} & {"opentelemetry", "prometheus_client"}))
asyncio.run(main())
"""


def test_off_imports_nothing_and_does_the_plain_shift():
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["Shift"]


def test_opentelemetry_that_is_installed_and_not_set_up_is_off(monkeypatch: pytest.MonkeyPatch):
    assert tracer() is None
    assert not traced.watching()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    provide(TracerProvider())
    try:
        assert tracer() is None
    finally:
        provide(None)


def test_while_another_thread_imports_it_tracing_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK of MCP imports it, in a thread beside a worker."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", types.ModuleType("opentelemetry.trace"))
    assert telemetry.tracer() is None
    assert telemetry.current_trace() is None
    assert telemetry.span("a step", {}) is telemetry.NO_SPAN
