"""Presence: learn at once that another worker has died, where the kernel or the database can tell.

A shortcut, not the truth: the lease decides in the end, and the fence protects whatever is decided. A process of this
machine is dead when the kernel says so (a pidfd becomes readable, or the pid is unknown). One of another machine is dead
when its session lock in the database has been free for a while and the database did not just restart, which frees the
locks of the living too.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import uuid
from collections.abc import Callable
from pathlib import Path

from onward.store.port.workers import WorkerRow

LOCK = "lock"
"""The address of a worker that holds a presence lock in the database."""

CONFIRM = 0.3
"""Seconds for which a presence lock must stay free."""


def machine() -> str:
    """The boot and the process namespace in which our pid means something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()}/{uuid.getnode()}"


def _boot(machine: str) -> str:
    return machine.partition("/")[0]


class Watch:
    """The processes of this machine that we watch, and the locks that we saw free."""

    def __init__(self, died: Callable[[str], None], *, one_machine: bool) -> None:
        self._machine, self._died, self._one_machine = machine(), died, one_machine
        self._fds: dict[str, int] = {}
        self._free_since: dict[str, float] = {}

    def peers(self, rows: list[WorkerRow]) -> None:
        """Watch these workers, as far as they are of this machine."""
        here = {row.id: row.pid for row in rows if row.machine == self._machine and row.pid != os.getpid()}
        for gone in self._fds.keys() - here.keys():
            self._forget(gone)
        for worker, pid in here.items():
            if worker not in self._fds and not self._watch(worker, pid):
                self._died(worker)
        if self._one_machine:  # a file has one machine: who wrote to it before the reboot is gone
            for row in rows:
                if _boot(row.machine) != _boot(self._machine):
                    self._died(row.id)

    def misses(self, rows: list[WorkerRow]) -> bool:
        """Whether one of these workers has a presence lock and the kernel of this machine does not watch it."""
        return any(row.address == LOCK and row.id not in self._fds and not self._is_here(row) for row in rows)

    def _is_here(self, row: WorkerRow) -> bool:
        return row.machine == self._machine and row.pid == os.getpid()

    def _watch(self, worker: str, pid: int) -> bool:
        """False when there is no such process."""
        try:
            if not hasattr(os, "pidfd_open"):
                os.kill(pid, 0)
                return True
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:  # not ours to ask, or too many open files: the lease decides
            return True
        self._fds[worker] = fd
        try:
            asyncio.get_running_loop().add_reader(fd, self._readable, worker)
        except (OSError, NotImplementedError):
            return not select.select([fd], [], [], 0)[0]
        return True

    def _readable(self, worker: str) -> None:
        self._forget(worker)
        self._died(worker)

    def _forget(self, worker: str) -> None:
        fd = self._fds.pop(worker)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)

    def confirmed(self, absent: set[str], now: float) -> set[str]:
        """Those whose lock was free each time we looked, for long enough."""
        self._free_since = {worker: self._free_since.get(worker, now) for worker in absent}
        return {worker for worker, since in self._free_since.items() if now - since >= CONFIRM}

    def close(self) -> None:
        for worker in list(self._fds):
            self._forget(worker)
