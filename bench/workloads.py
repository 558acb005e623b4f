"""Onward under the six workloads, measured as the neighbours are. What each of them is, says the head of `bench`.

A workload gets a store ("sqlite" or "postgres"), the URL of an empty database in it, and whether to be quick (about a tenth of
the work). It returns its figures under the names in `measure`, with `ONWARD` as the system, and checks that the work was
really done before it says how quickly. `python -m bench` runs whatever stands in WORKLOADS.

W2, W4 and W5 need other processes: `python -m bench.workloads ROLE URL …` is the place for them, as in `peers/child`.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.measure import Figure

Workload = Callable[[str, str, bool], list[Figure]]


def w1(store: str, url: str, quick: bool) -> list[Figure]:
    """W1_ONE: 5,000 submits one by one, tasks/s, `latency()` in the note. W1_BATCH: 50,000 in batches of 1,000."""
    raise NotImplementedError


def w2(store: str, url: str, quick: bool) -> list[Figure]:
    """W2_ONE, W2_TWO: 50,000 waiting tasks, first body to last durable row, with workers that stand ready."""
    raise NotImplementedError


def w3(store: str, url: str, quick: bool) -> list[Figure]:
    """W3: 200 waiting tasks of 20 steps in one process, first body to the last task durably done."""
    raise NotImplementedError


def w4(store: str, url: str, quick: bool) -> list[Figure]:
    """W4_PICKUP, W4_PICKUP_P99: before submit to first body in another process, 200 tasks 0.1 to 0.2 s apart.

    W4_STEPS: before submit to the result of a task of ten steps in the caller's hands, the worker in another process.
    """
    raise NotImplementedError


def w5(store: str, url: str, quick: bool) -> list[Figure]:
    """W5_DONE: 100 tasks of 10 steps x 0.2 s, kill -9 when 500 steps have ended; from the start of the new worker until all
    are durably done. W5_AGAIN: steps whose body had ended before the kill and began again after it."""
    raise NotImplementedError


def w6(store: str, url: str, quick: bool) -> list[Figure]:
    """W6_MEMORY: how much more resident memory a worker has with 1,000 tasks waiting than idle."""
    raise NotImplementedError


WORKLOADS: dict[str, Workload] = {}
