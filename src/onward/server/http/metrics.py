"""Metrics: how it stands and what was done, as Prometheus reads it (`onward[metrics]`).

What is in the store (the queues, the workers, what is asked of people) is looked up when somebody asks, and for a while after
that answered from memory. What this process has done is counted in `telemetry.counters`, from the moment on in which one of these
is made. Metrics of the program itself, in the registry of `prometheus_client`, come along.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from onward.core.clock import Clock, SystemClock
from onward.errors import BadSetting, OnwardError, UsageError
from onward.store.port.overview import QueueSnapshot, Unfinished
from onward.telemetry import (
    COUNTER_METRICS,
    GAUGE_METRICS,
    HISTOGRAM_EDGES_S,
    HISTOGRAM_METRICS,
    MAX_LABEL_VALUES,
    OTHER,
    Key,
    counters,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

FRESH = 1.0
"""Seconds for which an answer of the store is as good as a new one."""

SHARE = 20
"""A look may take one of so many parts of the time: when it takes long, the next comes later."""

PATIENCE = 10.0
"""Seconds that a scrape waits for the loop."""

Look = Callable[[], Awaitable[QueueSnapshot | None]]
"""Asks the store how it stands (`Service.standing`)."""


class Metrics:
    """The metrics of one process and of the database it works on. To make one is to switch counting on."""

    def __init__(self, look: Look, clock: Clock | None = None) -> None:
        _imported()
        self._asked, self._clock = look, clock or SystemClock()
        self._stood: QueueSnapshot | None = None
        self._until = -1.0
        self._look = asyncio.Lock()
        counters.on = True

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """What `GET /metrics` answers: the bytes, and their type by what the scraper accepts."""
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 -- an extra
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415

        encode, kind = choose_encoder(accept)
        registry = CollectorRegistry()
        registry.register(_Found(await self.families()))
        return encode(registry), kind

    async def families(self) -> list[Metric]:
        """All metrics, read now."""
        from prometheus_client import REGISTRY  # noqa: PLC0415 -- an extra

        standing = await self._standing()
        return [*_gauges(standing), *_counted(), *_timed(), *REGISTRY.collect()]

    async def _standing(self) -> QueueSnapshot | None:
        """How the store stands; None when it cannot be asked."""
        async with self._look:
            began = self._clock.monotonic()
            if began >= self._until:
                try:
                    self._stood = await self._asked()
                except OnwardError:
                    self._stood = None
                now = self._clock.monotonic()
                self._until = now + max(FRESH, SHARE * (now - began))
            return self._stood


@contextlib.asynccontextmanager
async def exposed(look: Look, host: str, port: int) -> AsyncIterator[None]:
    """Answer `GET /metrics` at this address while the block lasts, for processes that serve nothing else; port 0 is none. It
    has threads of its own, and asks the loop that we are on now."""
    if not port:
        yield
        return
    metrics, loop = Metrics(look), asyncio.get_running_loop()
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 -- an extra

    def collect() -> Iterable[Metric]:
        return asyncio.run_coroutine_threadsafe(metrics.families(), loop).result(PATIENCE)

    registry: CollectorRegistry = CollectorRegistry(auto_describe=False)
    found = _Found([])
    found.collect = collect  # type: ignore[method-assign]
    registry.register(found)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise BadSetting("ONWARD_METRICS_PORT", port, f"a port that is free on {host} ({error})") from None
    try:
        yield
    finally:
        await asyncio.to_thread(server.shutdown)  # a scrape that is under way waits for this very loop
        server.server_close()
        thread.join()


class _Found:
    """What a registry collects from: metrics that were read already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _imported() -> None:
    try:
        import prometheus_client  # noqa: F401, PLC0415 -- an extra
    except ImportError:
        raise UsageError("metrics need the package prometheus-client: pip install 'onward[metrics]'") from None


# ── families ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _gauges(standing: QueueSnapshot | None) -> Iterator[Metric]:
    yield _gauge("onward_store_up", "Whether the store answers.", (), {(): float(standing is not None)})
    if standing is None:
        return
    unfinished = bounded(standing.unfinished)
    names = ("queue", "reason")
    tasks = {(one.queue, one.reason): float(one.tasks) for one in unfinished}
    oldest = {(one.queue, one.reason): max(0.0, one.oldest) for one in unfinished}
    yield _gauge("onward_queue_tasks", "Unfinished tasks, by queue and reason.", names, tasks)
    yield _gauge("onward_queue_oldest_seconds", "Since the oldest of them was submitted.", names, oldest)
    yield _gauge("onward_workers", "Workers that are not known to be dead.", (), {(): float(standing.workers)})
    yield _gauge("onward_workers_late", "Those of them whose lease has ended.", (), {(): float(standing.late)})
    yield _gauge("onward_slots", "Tasks that all workers can do at once.", (), {(): float(standing.slots)})
    asked = {"approval": standing.asks.get("approval.requested", 0), "question": standing.asks.get("question.asked", 0)}
    yield _gauge("onward_asks_open", "What waits for a person.", ("kind",), {(k,): float(n) for k, n in asked.items()})
    if standing.outbox is not None:
        waiting_events, oldest_event = standing.outbox
        yield _gauge("onward_outbox_events", "Events that have to leave.", (), {(): float(waiting_events)})
        yield _gauge(
            "onward_outbox_oldest_seconds", "Since the oldest of them happened.", (), {(): max(0.0, oldest_event)}
        )


def bounded(unfinished: list[Unfinished]) -> list[Unfinished]:
    """The same with no more than MAX_LABEL_VALUES queues: the fullest keep their names, the rest are one."""
    full: collections.Counter[str] = collections.Counter()
    for one in unfinished:
        full[one.queue] += one.tasks
    named = {queue for queue, _ in full.most_common(MAX_LABEL_VALUES)}
    rest: dict[str, Unfinished] = {}
    for one in unfinished:
        if one.queue not in named:
            there = rest.get(one.reason, Unfinished(OTHER, one.reason, 0, 0.0))
            rest[one.reason] = there._replace(tasks=there.tasks + one.tasks, oldest=max(there.oldest, one.oldest))
    return [*(one for one in unfinished if one.queue in named), *rest.values()]


def _gauge(name: str, help_: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 -- an extra

    family = GaugeMetricFamily(name, help_, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _counted() -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 -- an extra

    numbers, _ = counters.snapshot()
    for name, (help_, labels) in COUNTER_METRICS.items():
        family = CounterMetricFamily(name.removesuffix("_total"), help_, labels=labels)
        for key, value in _of(name, numbers, labels):
            family.add_metric(key, value)
        yield family
    for name, (help_, labels) in GAUGE_METRICS.items():
        yield _gauge(name, help_, labels, dict(_of(name, numbers, labels)))


def _of(name: str, numbers: dict[Key, Any], labels: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of a metric; one without labels is there from the beginning."""
    found = [(key, value) for (one, key), value in numbers.items() if one == name]
    yield from found or ([] if labels else [((), 0)])


def _timed() -> Iterator[Metric]:
    from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415 -- an extra

    _, times = counters.snapshot()
    for name, (help_, labels) in HISTOGRAM_METRICS.items():
        family = HistogramMetricFamily(name, help_, labels=labels)
        for key, counts in _of(name, times, labels):
            edges, under = [*map(str, HISTOGRAM_EDGES_S), "+Inf"], 0.0
            buckets = [(edge, under := under + count) for edge, count in zip(edges, counts[:-1], strict=True)]
            family.add_metric(key, buckets=buckets, sum_value=counts[-1])
        yield family
