"""The parts of a worker on their own: the lease, the heart, presence, threads, replay, and nudges."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from onward.core import record as r
from onward.core.clock import SystemClock
from onward.core.control import Park
from onward.core.record import Record
from onward.engine.shift.replay import STEPS, Replay, path_of
from onward.engine.shift.threads import Threads
from onward.engine.shift.timeout import run_with_timeout
from onward.engine.worker.lease import Heartbeat, Lease
from onward.engine.worker.presence import CONFIRM_ABSENCE_S, PresenceWatch, machine_id
from onward.engine.worker.watchdog import Watchdog
from onward.errors import StoreUnavailable
from onward.store.nudge import MAX_PENDING, SEND_EVERY_S, Datagrams, Hub, send_datagrams
from onward.store.port.workers import Beat
from tests.kit import HandClock, Through, calm, eventually, row

# ── the lease ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_lease_counts_from_when_the_heartbeat_was_sent(clock: HandClock) -> None:
    lease = Lease(clock, 10)
    assert not lease.holds()
    sent = clock.time
    clock.jump(3)  # the answer took its time
    lease.renew(sent)
    clock.jump(6.9)
    assert lease.holds()
    clock.jump(0.2)
    assert not lease.holds()


async def test_waiting_for_the_lease(clock: HandClock) -> None:
    lease = Lease(clock, 10)
    waiting = asyncio.ensure_future(lease.until_held())
    await calm()
    assert not waiting.done()
    lease.renew(clock.time - 20)  # an answer that came too late does not count
    await calm()
    assert not waiting.done()
    lease.renew(clock.time)
    await waiting


async def test_no_verdict_on_others_after_trouble_of_our_own(clock: HandClock) -> None:
    lease = Lease(clock, 10)
    lease.renew(clock.time)
    assert lease.may_judge()
    lease.doubt()
    for _ in range(5):
        clock.jump(2)
        lease.renew(clock.time)
        assert not lease.may_judge(), "an outage for all workers must not make the others look dead"
    clock.jump(2)
    lease.renew(clock.time)
    assert lease.may_judge()
    clock.jump(6)
    lease.renew(clock.time)
    assert not lease.may_judge(), "this heartbeat came late: something was wrong, with us or with the database"
    lease.drop()
    assert not lease.holds()


# ── the heart ────────────────────────────────────────────────────────────────────────────────────────────────────────


class FakeStore:
    """Just enough of a store for a heartbeat."""

    inline = False

    def __init__(self) -> None:
        self.beats: list[float] = []
        self.away = False
        self.workers = self

    def clone(self) -> FakeStore:
        return self

    async def open(self, *, migrate: bool | None = None) -> None: ...

    async def heartbeat(self, worker: str, lease: float, rate: float, *_: Any) -> Beat:
        if self.away:
            raise StoreUnavailable("away")
        self.beats.append(time.monotonic())
        return Beat(alive=True, now=0.0, held=frozenset())


async def _give_up(*_: Any) -> None: ...


def heart(
    store: Any, lease: float = 1.0, on_beat: Any = lambda *_: None, watchdog: Watchdog | None = None
) -> Heartbeat:
    clock = SystemClock()
    return Heartbeat(
        store,
        clock,
        lease=lease,
        interval_s=0.02,
        worker=lambda: "w",
        rate=lambda: 0.0,
        on_beat=on_beat,
        watchdog=watchdog or Watchdog(clock, 0.02),
        on_stuck=_give_up,
    )


async def test_a_heart_beats_while_the_loop_is_blocked() -> None:
    store = FakeStore()
    beating = heart(store)
    beating.start()
    time.sleep(0.3)  # noqa: ASYNC251 -- a step that blocks the loop
    assert len(store.beats) > 3
    await beating.stop()
    count = len(store.beats)
    await asyncio.sleep(0.1)
    assert len(store.beats) == count


async def test_a_heart_stops_when_the_loop_is_taken_for_hung() -> None:
    store, watchdog = FakeStore(), Watchdog(SystemClock(), 0.02)
    beating = heart(store, lease=0.1, watchdog=watchdog)
    beating.start()
    time.sleep(0.7)  # noqa: ASYNC251 -- three leases and more
    late = [beat for beat in store.beats if beat > time.monotonic() - 0.2]
    assert late == [], "others may go on with the work"
    watchdog.turned()
    await eventually(lambda: _is(bool(store.beats and store.beats[-1] > time.monotonic() - 0.1)))
    await beating.stop()


async def test_a_heart_survives_an_outage() -> None:
    store, workers = FakeStore(), []
    store.away = True
    beating = heart(store, on_beat=lambda sent, worker, beat: workers.append(worker))
    beating.start()
    await asyncio.sleep(0.1)
    assert not workers
    store.away = False
    await eventually(lambda: _is(bool(workers)))
    await beating.stop()
    assert set(workers) == {"w"}


async def _is(value: bool) -> bool:
    return value


# ── presence ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def process(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code])


async def test_the_death_of_a_process_is_seen_at_once() -> None:
    dead: list[str] = []
    watch = PresenceWatch(dead.append, one_machine=True)
    child = process("import time; time.sleep(60)")
    try:
        peers = [row("child", machine=machine_id(), pid=child.pid), row("me", machine=machine_id(), pid=os.getpid())]
        watch.watch(peers)
        watch.watch(peers)
        await asyncio.sleep(0.05)
        assert dead == []
        child.kill()
        await eventually(lambda: _is(dead == ["child"]))
    finally:
        child.kill()
        child.wait()
        watch.close()


async def test_a_process_that_is_not_there_is_dead() -> None:
    dead: list[str] = []
    watch = PresenceWatch(dead.append, one_machine=False)
    ended = process("")
    ended.wait()
    watch.watch([row("gone", machine=machine_id(), pid=ended.pid), row("elsewhere", machine="other/ns", pid=ended.pid)])
    assert dead == ["gone"], "of another machine a pid says nothing"
    watch.close()


async def test_a_file_has_one_machine_so_workers_from_before_the_reboot_are_dead() -> None:
    dead: list[str] = []
    watch = PresenceWatch(dead.append, one_machine=True)
    boot = machine_id().partition("/")[0]
    watch.watch([row("before", machine="other-boot/ns", pid=1), row("container", machine=f"{boot}/other-ns", pid=1)])
    assert dead == ["before"]
    watch.close()


async def test_a_free_lock_must_stay_free_for_a_while() -> None:
    watch = PresenceWatch(lambda _: None, one_machine=False)
    assert watch.confirm_absent({"a", "b"}, 0.0) == set()
    assert watch.confirm_absent({"a"}, CONFIRM_ABSENCE_S / 2) == set()
    assert watch.confirm_absent({"a", "b"}, CONFIRM_ABSENCE_S) == {"a"}, "b was seen in between"
    assert watch.confirm_absent({"b"}, 2 * CONFIRM_ABSENCE_S) == {"b"}


# ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_threads_are_kept_for_the_next() -> None:
    threads = Threads()
    first = await threads.run(threading.get_ident)
    assert await threads.run(threading.get_ident) == first
    assert await asyncio.gather(*[threads.run(pow, n, 2) for n in range(30)]) == [n * n for n in range(30)]
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)
    threads.close()
    await eventually(
        lambda: _is(not [t for t in threading.enumerate() if t.name == "onward-step" and t.ident == first])
    )


@pytest.mark.parametrize("error", [StopIteration("x"), GeneratorExit("x")])
async def test_an_exception_that_no_coroutine_can_receive_is_wrapped(error: BaseException) -> None:
    threads = Threads()

    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError, match=f"{type(error).__name__}: x"):
        await threads.run(fail)
    threads.close()


async def test_a_thread_that_hangs_is_counted_until_it_comes_back() -> None:
    threads, release = Threads(), threading.Event()
    hanging = asyncio.ensure_future(threads.run(release.wait, 10))
    await asyncio.sleep(0.01)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert threads.left_behind == 1
    assert await threads.run(lambda: "another") == "another"
    release.set()
    await eventually(lambda: _is(threads.left_behind == 0))
    threads.close()


# ── replay ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def journal(*entries: tuple[str, str, bytes]) -> list[Record]:
    return [Record(n + 1, 2, kind, key, data, float(n)) for n, (kind, key, data) in enumerate(entries)]


DONE, FAILED = b'{"result":1}', b'{"error":{"type":"E","message":"m","attempts":1}}'


def test_known_steps_come_in_their_order_and_then_no_more() -> None:
    replay = Replay(
        journal((r.SUBMITTED, "", b"{}"), (r.SHIFT, "", b"{}"), (r.STEP_DONE, "a", DONE), (r.STEP_FAILED, "b", FAILED))
    )
    assert (replay.started_at, replay.unread, replay.first_unread()) == (1.0, 2, "a")
    assert replay.next("a", STEPS).data == {"result": 1}  # type: ignore[union-attr]
    assert replay.next("b", STEPS).failure().kind == "E"  # type: ignore[union-attr]
    assert replay.next("c", STEPS) is None
    assert (replay.unread, replay.first_unread()) == (0, None)


def test_branches_have_their_own_order() -> None:
    replay = Replay(journal((r.STEP_DONE, "[1]x", DONE), (r.STEP_DONE, "[0]x", DONE), (r.STEP_DONE, "[1]y", DONE)))
    assert path_of("[0.1]name#2") == "0.1"
    assert path_of("name#2") == ""
    assert replay.next("[0]x", STEPS) is not None
    assert replay.next("[1]x", STEPS) is not None
    with pytest.raises(Park, match=r"asks for step '\[1\]z' where the journal has '\[1\]y'"):
        replay.next("[1]z", STEPS)


@pytest.mark.parametrize("again", [r.RETRY, r.RESUMED])
def test_a_failure_that_ended_the_attempt_is_forgotten_and_a_caught_one_is_not(again: str) -> None:
    replay = Replay(
        journal(
            (r.STEP_FAILED, "caught", FAILED),
            (r.STEP_DONE, "a", DONE),
            (r.STEP_RETRY, "b", b'{"attempt":2}'),
            (r.STEP_FAILED, "b", FAILED),
            (again, "", b"{}"),
            (r.STEP_RETRY, "b", b'{"attempt":1}'),
        )
    )
    assert replay.unread == 2
    assert replay.next("caught", STEPS).kind == r.STEP_FAILED  # type: ignore[union-attr]
    assert replay.next("a", STEPS) is not None
    assert replay.next("b", STEPS) is None
    assert replay.take_failures("b") == 1, "only those since the task was tried again"
    assert replay.take_failures("b") == 0


def test_a_sleep_is_over_after_its_record() -> None:
    began = (r.SLEEP, "sleep", b'{"until":9}')
    assert Replay(journal(began)).next("sleep", frozenset({r.SLEEP})).over is False  # type: ignore[union-attr]
    assert Replay(journal(began, (r.SLEPT, "sleep", b"{}"))).next("sleep", frozenset({r.SLEEP})).over is True  # type: ignore[union-attr]


# ── nudges ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_busy_process_sends_few_nudges() -> None:
    sent: list[set[str]] = []
    hub = Hub(lambda topics: sent.append(set(topics)))
    for _ in range(100):
        hub.nudge("ready")
        hub.nudge("ended")
    assert sent == [{"ready"}], "the first goes out at once"
    await asyncio.sleep(SEND_EVERY_S * 3)
    assert sent == [{"ready"}, {"ready", "ended"}], "those of the next moment together"
    hub.close()


@pytest.mark.parametrize("topic", ["ended", "news", "follow", "who", "ready", "unknown"])
def test_a_nudge_of_a_stranger_raises_nothing(topic: str) -> None:
    hub, told, names = Hub(), threading.Event(), list[str]()
    hub.listen(topic, (lambda *queue: names.extend(queue)) if topic == "ready" else told.set)
    for rest in ("", " ", " default", " a b", " \x01", f" {'x' * 7000}"):
        hub.heard(f"{topic}{rest}")
    assert names == (["default", "a b", "\x01", "x" * 7000] if topic == "ready" else [])
    assert told.is_set() is (topic != "ready")


async def test_datagrams_between_processes() -> None:
    topics: list[str] = []
    listener = Datagrams(topics.append)
    address = await listener.open()
    send_datagrams({"ready"}, [address, "udp:1", "udp:999999", "udp:nonsense"])
    await eventually(lambda: _is(topics == ["ready"]))
    listener.close()


async def test_datagrams_of_strangers_are_ignored() -> None:
    topics: list[str] = []
    listener = Datagrams(topics.append)
    address = await listener.open()
    port = address.split(":")[1]
    for stranger in (f"udp:{port}", f"udp:{port}:", f"udp:{port}:{'0' * 16}"):
        send_datagrams({"ready"}, [stranger] * 20)
    send_datagrams({"ended"}, [address])
    await eventually(lambda: _is("ended" in topics))
    assert topics == ["ended"]
    listener.close()


async def test_many_datagrams_are_few_looks_and_the_last_is_not_lost() -> None:
    topics: list[str] = []
    listener = Datagrams(topics.append)
    token = (await listener.open()).split(":")[2]
    for number in range(1000):
        listener.datagram_received(f"{token} ready".encode(), None)
        listener.datagram_received(f"{token} ready queue{number}".encode(), None)
    listener.datagram_received(f"{token} ended".encode(), None)
    assert topics == ["ready"], "the first at once"
    await eventually(lambda: _is("ended" in topics))
    assert len(topics) <= MAX_PENDING + 4
    assert topics.count("ready") == 2, "and the rest together, once"
    listener.close()


async def test_a_store_in_front_of_a_store() -> None:
    """`Through` of the tests: it replaces the given verbs and passes all others on."""
    store = FakeStore()
    assert Through(store, inline=True).inline is True
    assert (await Through(store).workers.heartbeat("w", 1, 0)).alive


# ── work within a time ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_work_that_fails_in_the_moment_of_its_cancellation_leaves_no_error_behind(clock: HandClock) -> None:
    """Found by seed 3073 of the simulator."""
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
    go = asyncio.Event()

    async def fails() -> None:
        await go.wait()
        raise ValueError("too late to matter")

    within = asyncio.ensure_future(run_with_timeout(fails(), clock, 100, TimeoutError))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    go.set()
    await asyncio.sleep(0)  # it has failed, and no callback has run yet
    within.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within
    gc.collect()
    await asyncio.sleep(0)
    assert unhandled == []
