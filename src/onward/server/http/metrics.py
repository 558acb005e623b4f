"""Metrics for Prometheus (`onward[metrics]`).

Numbers from the store (queues, workers, open approvals) are read when a scrape comes, then cached for a moment. Numbers of this
process are counted in `telemetry.counters`, from the moment a `Metrics` is created. Metrics of the program itself, in the
registry of `prometheus_client`, are included.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from onward.core.clock import Clock, SystemClock
from onward.errors import BadSetting, OnwardError, UsageError
from onward.server.http.tls import certificate
from onward.store.port.overview import QueueSnapshot
from onward.telemetry import (
    COUNTER_METRICS,
    GAUGE_METRICS,
    HISTOGRAM_EDGES_S,
    HISTOGRAM_METRICS,
    Key,
    counters,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

CACHE_TTL_S = 1.0
"""Seconds for which a snapshot of the store is reused, at least."""

MAX_LOAD_DIVISOR = 20
"""Reading the store may take 1/20 of the time at most: a snapshot that took long to read is reused for longer."""

SCRAPE_TIMEOUT_S = 10.0
"""Seconds that a scrape waits for the event loop."""

ReadSnapshot = Callable[[], Awaitable[QueueSnapshot | None]]
"""Reads the numbers from the store (`Service.standing`)."""


class Metrics:
    """The metrics of one process and of its database. Creating one switches counting on."""

    def __init__(self, read: ReadSnapshot, clock: Clock | None = None) -> None:
        _require_prometheus_client()
        self._read, self._clock = read, clock or SystemClock()
        self._snapshot: QueueSnapshot | None = None
        self._until = -1.0
        self._lock = asyncio.Lock()
        counters.on = True

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """The response of `GET /metrics`: the bytes, and their media type, which depends on what the scraper accepts."""
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 -- an extra
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415

        encode, kind = choose_encoder(accept)
        registry = CollectorRegistry()
        registry.register(_Collected(await self.families()))
        return encode(registry), kind

    async def families(self) -> list[Metric]:
        """All metrics, read now."""
        from prometheus_client import REGISTRY  # noqa: PLC0415 -- an extra

        snapshot = await self._read_snapshot()
        return [*_gauges(snapshot), *_counted(), *_timed(), *REGISTRY.collect()]

    async def _read_snapshot(self) -> QueueSnapshot | None:
        """The snapshot of the store; None if the store does not answer."""
        async with self._lock:
            began = self._clock.monotonic()
            if began >= self._until:
                try:
                    self._snapshot = await self._read()
                except OnwardError:
                    self._snapshot = None
                now = self._clock.monotonic()
                self._until = now + max(CACHE_TTL_S, MAX_LOAD_DIVISOR * (now - began))
            return self._snapshot


@contextlib.asynccontextmanager
async def exposed(
    read: ReadSnapshot, host: str, port: int, tls_cert: str = "", tls_key: str = ""
) -> AsyncIterator[None]:
    """Serve `GET /metrics` at this address while the block lasts, for processes that serve nothing else; with port 0, do
    nothing. It runs in its own threads and calls the event loop of its caller. With a certificate it speaks TLS."""
    if not port:
        yield
        return
    tls = certificate(tls_cert, tls_key)
    metrics, loop = Metrics(read), asyncio.get_running_loop()
    from prometheus_client import CollectorRegistry, make_wsgi_app  # noqa: PLC0415 -- an extra

    from onward.server.http.metrics_port import MetricsServer  # noqa: PLC0415 -- few processes have one

    def collect() -> Iterable[Metric]:
        return asyncio.run_coroutine_threadsafe(metrics.families(), loop).result(SCRAPE_TIMEOUT_S)

    registry: CollectorRegistry = CollectorRegistry(auto_describe=False)
    collector = _Collected([])
    collector.collect = collect  # type: ignore[method-assign]
    registry.register(collector)
    try:
        server = MetricsServer(host, port, make_wsgi_app(registry), SCRAPE_TIMEOUT_S, tls)
    except OSError as error:
        raise BadSetting("ONWARD_METRICS_PORT", port, f"a free port on {host} ({error})") from None
    thread = threading.Thread(target=server.serve_forever, name="onward-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        await asyncio.to_thread(server.shutdown)  # in a thread: a running scrape waits for this event loop
        server.server_close()
        thread.join()


class _Collected:
    """A collector for a registry, with metrics that were already read."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _require_prometheus_client() -> None:
    try:
        import prometheus_client  # noqa: F401, PLC0415 -- an extra
    except ImportError:
        raise UsageError("metrics need the package prometheus-client: pip install 'onward[metrics]'") from None


# ── families ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _gauges(snapshot: QueueSnapshot | None) -> Iterator[Metric]:
    yield _gauge("onward_store_up", "Whether the store answers.", (), {(): float(snapshot is not None)})
    if snapshot is None:
        return
    unfinished = snapshot.unfinished
    names = ("queue", "reason")
    tasks = {(row.queue, row.reason): float(row.tasks) for row in unfinished}
    oldest = {(row.queue, row.reason): max(0.0, row.oldest) for row in unfinished}
    yield _gauge("onward_queue_tasks", "Unfinished tasks, by queue and reason.", names, tasks)
    yield _gauge("onward_queue_oldest_seconds", "Seconds since the oldest of them was submitted.", names, oldest)
    yield _gauge("onward_workers", "Workers that were not declared dead.", (), {(): float(snapshot.workers)})
    yield _gauge("onward_workers_late", "Those of them whose lease has ended.", (), {(): float(snapshot.late)})
    yield _gauge("onward_slots", "Tasks that all workers together can run at once.", (), {(): float(snapshot.slots)})
    open_asks = {
        "approval": snapshot.asks.get("approval.requested", 0),
        "question": snapshot.asks.get("question.asked", 0),
    }
    yield _gauge(
        "onward_asks_open", "Open approvals and questions.", ("kind",), {(k,): float(n) for k, n in open_asks.items()}
    )
    if snapshot.outbox is not None:
        events, oldest_s = snapshot.outbox
        yield _gauge("onward_outbox_events", "Events that wait to be sent.", (), {(): float(events)})
        yield _gauge(
            "onward_outbox_oldest_seconds", "Seconds since the oldest of them happened.", (), {(): max(0.0, oldest_s)}
        )


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
        for key, value in _samples(name, numbers, labels):
            family.add_metric(key, value)
        yield family
    for name, (help_, labels) in GAUGE_METRICS.items():
        yield _gauge(name, help_, labels, dict(_samples(name, numbers, labels)))


def _samples(name: str, numbers: dict[Key, Any], labels: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The samples of a metric. A metric without labels has a sample from the beginning."""
    samples = [(key, value) for (metric, key), value in numbers.items() if metric == name]
    yield from samples or ([] if labels else [((), 0)])


def _timed() -> Iterator[Metric]:
    from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415 -- an extra

    _, times = counters.snapshot()
    for name, (help_, labels) in HISTOGRAM_METRICS.items():
        family = HistogramMetricFamily(name, help_, labels=labels)
        for key, counts in _samples(name, times, labels):
            bounds, total = [*map(str, HISTOGRAM_EDGES_S), "+Inf"], 0.0
            buckets = [(bound, total := total + count) for bound, count in zip(bounds, counts[:-1], strict=True)]
            family.add_metric(key, buckets=buckets, sum_value=counts[-1])
        yield family
