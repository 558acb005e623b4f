"""Metrics: a scraper reads the true counts, in few statements and with bounded labels."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from typing import Any

import httpx2
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect

from onward import Onward, Retry
from onward.agent.model import ModelRefused, Reply, Usage
from onward.agent.models.scripted import ScriptedModel
from onward.agent.prices import Prices
from onward.config import load
from onward.core.caller import Caller
from onward.errors import BadSetting, StoreUnavailable
from onward.server.http import metrics as edge_metrics
from onward.server.http.metrics import Metrics
from onward.service.submission import SubmitRequest
from onward.store.port.overview import QueueSnapshot, Unfinished
from onward.telemetry import CLIENTS, ENDED, MAX_LABEL_VALUES, STEP_SECONDS, STEPS, Counters, counters
from tests.kit import HandClock, Lab, only_memory, sql
from tests.server.conftest import serving

pytestmark = pytest.mark.usefixtures("counting")

Numbers = dict[tuple[str, ...], float]


def numbers(text: str | bytes) -> dict[str, Numbers]:
    """All samples by name and the values of their labels, in the order of the labels' names."""
    samples: dict[str, Numbers] = {}
    for family in text_string_to_metric_families(text if isinstance(text, str) else text.decode()):
        for sample in family.samples:
            key = tuple(value for _, value in sorted(sample.labels.items()))
            samples.setdefault(sample.name, {})[key] = sample.value
    return samples


async def read(app: Onward) -> dict[str, Numbers]:
    text, kind = await Metrics(app.service.standing).text()
    assert kind.startswith("text/plain")
    return numbers(text)


async def one() -> int:
    return 1


# ── from the process ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_counts_are_true(app: Onward):
    tries: list[int] = []

    async def flaky() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")

    @app.task
    async def work(ctx):
        await ctx.step(one)
        await ctx.step(flaky, retry=Retry(attempts=3, first=0.01))
        await ctx.sleep("1.1s")
        await ctx.step(one)

    @app.task(retry=Retry(attempts=2, first=0.01))
    async def fails(ctx):
        raise ValueError("no")

    async with app.worker():
        handles = [await app.submit(work), *await app.submit_many(fails, [None] * 3)]
        await app.submit(work, key="twice", delay="1h")
        await app.submit(work, key="twice", delay="1h")
        for handle in handles:
            await app.service.wait(handle.id, 20)
        await app.cancel((await app.submit(work, delay="1h")).id)
    metrics = await read(app)
    assert metrics["onward_tasks_submitted_total"] == {("work",): 3, ("fails",): 3}
    assert metrics["onward_claims_total"] == {("work",): 2, ("fails",): 6}
    shifts = {("asleep", "work"): 1, ("completed", "work"): 1, ("retrying", "fails"): 3, ("failed", "fails"): 3}
    assert metrics["onward_shifts_total"] == shifts
    assert metrics["onward_steps_total"] == {("completed", "work"): 3}
    assert metrics["onward_retries_total"] == {("step", "work"): 2, ("task", "fails"): 3}
    ended = {("completed", "work"): 1, ("failed", "fails"): 3, ("cancelled", "work"): 1}
    assert metrics["onward_tasks_ended_total"] == ended
    assert metrics["onward_step_seconds_count"] == {("work",): 3}
    assert metrics["onward_task_seconds_count"] == {("completed", "work"): 1, ("failed", "fails"): 3}
    assert metrics["onward_task_seconds_sum"]["completed", "work"] > 1.1
    assert metrics["onward_queue_wait_seconds_count"] == {("work",): 1, ("fails",): 3}
    assert metrics["onward_leases_lost_total"] == {(): 0}


async def test_steps_are_counted_by_outcome_and_replays_are_not(lab: Lab):
    inside = asyncio.Event()

    async def hangs() -> None:
        inside.set()
        await asyncio.Event().wait()

    async def breaks() -> None:
        raise ValueError("no")

    @lab.app.task(retry=1)
    async def work(ctx):
        await ctx.step(one)
        await ctx.sleep("3s")
        await ctx.step(breaks)

    @lab.app.task
    async def cancelled(ctx):
        await ctx.step(hangs)

    await lab.start()
    await lab.ended(await lab.submit(work))
    task_id = await lab.submit(cancelled)
    await lab.clock.until(inside.wait(), 10)
    await lab.app.cancel(task_id)
    await lab.clock.until(lab.clock.sleep(10), 20)
    metrics = await read(lab.app)
    steps = {("completed", "work"): 1, ("failed", "work"): 1, ("left", "cancelled"): 1}
    assert metrics["onward_steps_total"] == steps
    assert metrics["onward_shifts_total"]["lost", "cancelled"] == 1
    assert metrics["onward_tasks_ended_total"] == {("failed", "work"): 1, ("cancelled", "cancelled"): 1}


async def test_a_worker_that_is_declared_dead_counts_a_lost_lease(lab: Lab):
    @lab.app.task
    async def work(ctx): ...

    worker = await lab.start()
    await lab.store.workers.rescue([worker.id])
    await lab.clock.until(lab.clock.sleep(30), 40)
    assert (await read(lab.app))["onward_leases_lost_total"] == {(): 1}


async def test_children_that_a_cancel_ends_are_counted(lab: Lab):
    @lab.app.task
    async def child(ctx):
        await ctx.sleep("1d")

    @lab.app.task
    async def work(ctx):
        await (await ctx.submit(child))

    await lab.start()
    task_id = await lab.submit(work)
    await lab.settled(task_id)
    await lab.app.cancel(task_id)
    assert (await read(lab.app))["onward_tasks_ended_total"] == {("cancelled", "work"): 1, ("cancelled", "child"): 1}


async def test_tokens_and_money(lab: Lab):
    answers = [Reply("yes", (), Usage(1000, 50, 200))]
    model, refusing = ScriptedModel(answers, "m1"), ScriptedModel([ModelRefused("m2", "no")], "m2")
    model.prices = Prices(10.0, 100.0)
    lab.app.agent("agent", model=model)
    lab.app.agent("refused", model=refusing, retry=1)
    await lab.start()
    await lab.ended(await lab.submit("agent", "goal"))
    await lab.ended(await lab.submit("refused", "goal"))
    metrics = await read(lab.app)
    assert metrics["onward_model_tokens_total"] == {("m1", "input"): 1000, ("m1", "cached"): 200, ("m1", "output"): 50}
    assert metrics["onward_model_cost_usd_total"] == {("m1",): pytest.approx(0.015)}
    assert metrics["onward_model_calls_total"] == {("m1", "answered"): 1, ("m2", "failed"): 1}


# ── from the store ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_queues_workers_and_open_asks(app: Onward):
    @app.task
    async def asks(ctx):
        await ctx.gather(ctx.ask("which?"), ctx.ask("when?"), ctx.approve("may I?"))

    @app.task(queue="slow")
    async def sleeps(ctx):
        await ctx.sleep("1h")

    async with app.worker(slots=7) as worker:
        await app.submit(asks)
        await app.submit_many(sleeps, [None] * 3)
        await app.submit(sleeps, delay="1h")
        await app.submit(sleeps, queue="nobody's", delay="1h")
        while (await app.list(state="pending"))[0][2:] or worker.running:  # noqa: ASYNC110 -- it tells nobody
            await asyncio.sleep(0.01)
        metrics = await read(app)
        assert metrics["onward_store_up"] == {(): 1}
        assert metrics["onward_queue_tasks"] == {
            ("default", "approval"): 1,
            ("slow", "asleep"): 3,
            ("slow", "delayed"): 1,
            ("nobody's", "delayed"): 1,
        }
        assert metrics["onward_queue_oldest_seconds"].keys() == metrics["onward_queue_tasks"].keys()
        assert all(0 <= age < 60 for age in metrics["onward_queue_oldest_seconds"].values())
        assert metrics["onward_asks_open"] == {("approval",): 1, ("question",): 2}
        assert metrics["onward_workers"] == {(): 1}
        assert metrics["onward_slots"] == {(): 7}
    assert (await read(app))["onward_workers"] == {(): 0}


async def test_an_outbox_is_counted_where_there_is_one(url: str):
    async with Onward(url, webhook_secret=f"whsec_{'s' * 43}=") as app:
        assert (await read(app))["onward_outbox_events"] == {(): 0}
        await app.subscriptions.make("https://example.com/hook", ["task.submitted"])
        await app.service.submit([SubmitRequest("work"), SubmitRequest("work")], unchecked=True)
        metrics = await read(app)
        assert metrics["onward_outbox_events"] == {(): 2}
        assert 0 <= metrics["onward_outbox_oldest_seconds"][()] < 60
        await sql(app.store, "ALTER TABLE onward_outbox RENAME TO elsewhere")  # as with tables of an older version
        try:
            metrics = await read(app)
        finally:
            await sql(app.store, "ALTER TABLE elsewhere RENAME TO onward_outbox")
        assert "onward_outbox_events" not in metrics
        assert metrics["onward_store_up"] == {(): 1}


async def test_the_age_of_the_oldest_task(lab: Lab):
    @lab.app.task
    async def work(ctx): ...

    await lab.submit(work)
    lab.clock.jump(100)
    await lab.submit(work)
    metrics = await read(lab.app)
    assert metrics["onward_queue_tasks"] == {("default", "queued"): 2}
    assert metrics["onward_queue_oldest_seconds"] == {("default", "queued"): pytest.approx(100, abs=1)}


async def test_the_store_is_read_at_most_once_a_second_and_less_often_when_it_is_slow():
    clock, reads, slow = HandClock(), [], 0.0

    async def look() -> QueueSnapshot:
        reads.append(clock.monotonic())
        clock.jump(slow)
        return QueueSnapshot([Unfinished("q", "queued", len(reads), 1.0)], {}, 1, 1, 0, None)

    metrics = Metrics(look, clock)
    for _ in range(20):
        await metrics.text()
        clock.jump(0.1)
    assert len(reads) == 2
    reads.clear()
    slow = 2.0
    for _ in range(100):
        await metrics.text()
        clock.jump(1)
    assert len(reads) in {3, 4}
    many = [metrics.text() for _ in range(50)]
    clock.jump(1000)
    reads.clear()
    await asyncio.gather(*many)
    assert len(reads) == 1


async def test_a_store_that_is_away_is_reported_with_all_other_metrics():
    async def look() -> QueueSnapshot:
        raise StoreUnavailable("gone")

    counters.add(ENDED, "work", "completed")
    text, _ = await Metrics(look).text()
    metrics = numbers(text)
    assert metrics["onward_store_up"] == {(): 0}
    assert "onward_queue_tasks" not in metrics
    assert metrics["onward_tasks_ended_total"] == {("completed", "work"): 1}


# ── labels ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_labels_are_bounded():
    own = Counters()
    own.on = True
    for n in range(5 * MAX_LABEL_VALUES):
        own.add(STEPS, f"task {n}", "completed")
        own.time(STEP_SECONDS, 0.1, f"task {n}")
    own.add(STEPS, "task 1", "failed")
    own.request("/x", "BREW", 405, 0.1)
    counted, timed = own.snapshot()
    names = {labels[0] for name, labels in counted if name == STEPS}
    assert len(names) == MAX_LABEL_VALUES + 1
    assert counted[STEPS, ("other", "completed")] == 4 * MAX_LABEL_VALUES
    assert counted[STEPS, ("task 1", "failed")] == 1
    assert len({labels for name, labels in timed if name == STEP_SECONDS}) == MAX_LABEL_VALUES + 1
    assert ("onward_http_requests_total", ("/x", "other", "405")) in counted


async def test_no_id_ever_becomes_a_label(app: Onward):
    @app.task
    async def work(ctx):
        await ctx.step(one)

    async with app.worker():
        task = await app.submit(work)
        await task.result(timeout=60)
    text, _ = await Metrics(app.service.standing).text()
    assert task.id not in text.decode()


async def test_off_counts_only_stream_clients():
    own = Counters()
    own.add(STEPS, "t", "completed")
    own.time(STEP_SECONDS, 1.0, "t")
    assert own.snapshot() == ({}, {})
    async with own.client("sse"):
        assert own.snapshot() == ({(CLIENTS, ("sse",)): 1}, {})
    assert own.snapshot() == ({(CLIENTS, ("sse",)): 0}, {})


def test_a_histogram_counts_each_once():
    own = Counters()
    own.on = True
    for seconds in (0.001, 0.005, 0.3, 99999):
        own.time(STEP_SECONDS, seconds, "t")
    _, timed = own.snapshot()
    *buckets, total = timed[STEP_SECONDS, ("t",)]
    assert (sum(buckets), buckets[0], buckets[-1], total) == (4, 2, 1, pytest.approx(99999.306))


# ── where they are read ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_over_http(app: Onward):
    @app.task
    async def work(ctx): ...

    counters.on = False
    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        assert (await client.get("/metrics")).status_code == 200
        assert counters.on  # from here on: counting starts with the first scrape
        assert (await client.post("/api/tasks", json={"task": "work"})).status_code in {202, 404}
        assert (await client.get("/api/tasks/nothing")).status_code == 404
        assert (await client.get("/nowhere")).status_code == 404
        assert (await client.request("PROPFIND", "/metrics")).status_code == 405
        metrics = numbers((await client.get("/metrics")).text)
        open_metrics = await client.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    requests = metrics["onward_http_requests_total"]
    assert requests["GET", "/api/tasks/{id}", "404"] == 1
    assert requests["GET", "other", "404"] == 1
    assert requests["other", "/metrics", "405"] == 1
    assert requests["GET", "/metrics", "200"] == 1
    assert metrics["onward_http_request_seconds_count"]["/api/tasks/{id}",] == 1
    assert "process_resident_memory_bytes" in metrics
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert {family.name for family in read_openmetrics(open_metrics.text)} >= {"onward_queue_tasks", "onward_steps"}


@only_memory
async def test_clients_of_streams_are_counted_while_they_are_there(app: Onward):
    @app.task
    async def work(ctx):
        await ctx.signal("never")

    counters.on = False  # they connect before the first scrape
    task = await app.submit(work)
    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        ws = f"{address.replace('http', 'ws')}/api/tasks/{task.id}/ws"
        async with client.stream("GET", "/api/progress", params={"task_id": task.id}) as stream, connect(ws):
            lines = stream.aiter_lines()  # closing the response hangs up
            await anext(lines)
            metrics_before = numbers((await client.get("/metrics")).text)
        for _ in range(500):
            metrics_after = numbers((await client.get("/metrics")).text)
            if not any(metrics_after["onward_stream_clients"].values()):
                break
            await asyncio.sleep(0.01)
    assert metrics_before["onward_stream_clients"] == {("sse",): 1, ("websocket",): 1}
    assert metrics_after["onward_stream_clients"] == {("sse",): 0, ("websocket",): 0}


@only_memory
async def test_metrics_are_of_all_tenants_so_they_are_for_no_tenant(app: Onward):
    class Gate:
        async def caller(self, authorization: str | None, outside: str | None = None) -> Caller:
            scopes = frozenset({"admin"}) if authorization != "read" else frozenset({"read"})
            return Caller(tenant="acme" if authorization == "acme" else None, scopes=scopes)

    served = app.asgi()
    served.state.server.authenticator = Gate()
    transport = httpx2.ASGITransport(app=served)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answers = [await client.get("/metrics", headers={"Authorization": key}) for key in ("acme", "read", "me")]
    assert [answer.status_code for answer in answers] == [403, 403, 200]


@only_memory
async def test_without_the_extra_the_error_names_it(app: Onward, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        answer = await client.get("/metrics")
    assert answer.status_code == 501
    assert "onward[metrics]" in answer.json()["detail"]


async def test_a_worker_answers_on_a_port_of_its_own(url: str):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = Onward(url, metrics_port=port)

    @app.task
    async def work(ctx):
        await ctx.step(one)

    async with app, app.worker():
        await (await app.submit(work)).result(timeout=60)
        text = await asyncio.to_thread(_get, port)
    assert numbers(text)["onward_steps_total"] == {("completed", "work"): 1}
    assert numbers(text)["onward_workers"] == {(): 1}
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(_get, port)


def _get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


@only_memory
async def test_a_port_that_is_taken_is_a_sentence(url: str):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        app = Onward(url, metrics_port=taken.getsockname()[1])

        @app.task
        async def work(ctx): ...

        with pytest.raises(BadSetting, match=r"ONWARD_METRICS_PORT.*a free port on 127"):
            async with app.worker():
                raise AssertionError


@pytest.mark.parametrize("port", [-1, 65536, "many"])
def test_a_port_is_a_port(port: Any):
    with pytest.raises(BadSetting):
        load({"metrics_port": port}, {})


def test_every_metric_has_a_sentence_and_a_plain_name():
    tables = [edge_metrics.COUNTER_METRICS, edge_metrics.GAUGE_METRICS, edge_metrics.HISTOGRAM_METRICS]
    for name, (help_, labels) in {k: v for table in tables for k, v in table.items()}.items():
        assert name.startswith("onward_")
        assert help_.endswith(".")
        assert all(label.isidentifier() for label in labels)
