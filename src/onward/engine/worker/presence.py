"""Presence: the worker learns at once that another worker has died, where the kernel or the database can say so.

This is a shortcut: the lease decides in the end, and the fence protects the journal in any case. A process of this machine
is dead when the kernel says so (a pidfd becomes readable, or the pid is unknown). One of another machine is dead when its
session lock in the database has been free for a while and the database did not just restart, because a restart frees the locks
of living workers too.
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

LOCK_ADDRESS = "lock"
"""The address of a worker that holds a presence lock in the database."""

CONFIRM_ABSENCE_S = 0.3
"""Seconds for which a presence lock must stay free before its worker counts as dead."""


def machine_id() -> str:
    """The boot and the process namespace in which the pid of this process is unique."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()}/{uuid.getnode()}"


def _boot_id(machine: str) -> str:
    return machine.partition("/")[0]


class PresenceWatch:
    """Watches the worker processes of this machine, and remembers which locks were free."""

    def __init__(self, on_death: Callable[[str], None], *, one_machine: bool) -> None:
        self._machine, self._on_death, self._one_machine = machine_id(), on_death, one_machine
        self._fds: dict[str, int] = {}
        self._free_since: dict[str, float] = {}

    def watch(self, rows: list[WorkerRow]) -> None:
        """Watch these workers, as far as they run on this machine, and stop watching all others."""
        here = {row.id: row.pid for row in rows if row.machine == self._machine and row.pid != os.getpid()}
        for gone in self._fds.keys() - here.keys():
            self._unwatch(gone)
        for worker, pid in here.items():
            if worker not in self._fds and not self._watch_process(worker, pid):
                self._on_death(worker)
        if self._one_machine:  # a file has one machine: a worker from before the reboot is gone
            for row in rows:
                if _boot_id(row.machine) != _boot_id(self._machine):
                    self._on_death(row.id)

    def any_unwatched(self, rows: list[WorkerRow]) -> bool:
        """Whether one of these workers has a presence lock and the kernel of this machine does not watch it."""
        return any(
            row.address == LOCK_ADDRESS and row.id not in self._fds and not self._is_this_process(row) for row in rows
        )

    def _is_this_process(self, row: WorkerRow) -> bool:
        return row.machine == self._machine and row.pid == os.getpid()

    def _watch_process(self, worker: str, pid: int) -> bool:
        """Returns False when there is no such process."""
        try:
            if os.name == "nt":  # `os.kill` would end the process there: the lease decides
                return True
            if not hasattr(os, "pidfd_open"):
                os.kill(pid, 0)
                return True
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:  # no permission, or too many open files: the lease decides
            return True
        self._fds[worker] = fd
        try:
            asyncio.get_running_loop().add_reader(fd, self._readable, worker)
        except (OSError, NotImplementedError):
            return not select.select([fd], [], [], 0)[0]
        return True

    def _readable(self, worker: str) -> None:
        self._unwatch(worker)
        self._on_death(worker)

    def _unwatch(self, worker: str) -> None:
        fd = self._fds.pop(worker)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)

    def confirm_absent(self, absent: set[str], now: float) -> set[str]:
        """The workers whose lock was free at each look, for long enough."""
        self._free_since = {worker: self._free_since.get(worker, now) for worker in absent}
        return {worker for worker, since in self._free_since.items() if now - since >= CONFIRM_ABSENCE_S}

    def close(self) -> None:
        for worker in list(self._fds):
            self._unwatch(worker)
