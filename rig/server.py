"""How the rig starts a process: not as root if the program refuses that, never outliving this process, on a port that stays free.

PostgreSQL and PgBouncer refuse to run as root. As root we therefore start them in a guise:

    namespace   a user namespace in which we are called nobody: the files stay ours, no user or mode is changed
    nobody      where namespaces are forbidden (Docker's default seccomp), the real uid 65534; the caller sees to it
                that nobody can read the binaries and owns the data

An ordinary user needs neither. Whatever the guise, the pid we get is the server's own: every layer execs the next.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

NOBODY = 65534


class Unavailable(RuntimeError):
    """A server cannot be had on this machine; the message says why, and what would help."""


@dataclass(frozen=True)
class Guise:
    """As whom a server runs: commands put before its own, and the uid to change to (None: stay who we are)."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None


@cache
def guise() -> Guise:
    if os.geteuid() != 0:
        return Guise()
    # 65534 and no other: the uid must have a passwd entry, and this one always has.
    namespace = ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}", "--")
    try:
        subprocess.run([*namespace, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return Guise(uid=NOBODY)
    return Guise(prefix=namespace)


def run(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end in the guise of a server; stdout and stderr come back as one text in `stdout`."""
    who = guise()
    return subprocess.run(
        [*who.prefix, *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=env,
        cwd="/",
        user=who.uid,
        group=who.uid,
        extra_groups=None if who.uid is None else [],
    )


def spawn(
    command: Sequence[str | Path],
    log: Path,
    env: Mapping[str, str] | None = None,
    *,
    orphan_signal: str = "KILL",
    never_root: bool = False,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a server that gets `orphan_signal` when this process dies, however it dies. Its output is appended to `log`."""
    who = guise() if never_root else Guise()

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [*who.prefix, *leash(orphan_signal), *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                cwd=cwd or "/",
                user=who.uid,
                group=who.uid,
                extra_groups=None if who.uid is None else [],
                start_new_session=True,  # Ctrl-C is for the tests; they stop their servers themselves
            )

    return in_lasting_thread(start)


def leash(signal: str) -> tuple[str, ...]:
    """The words before a command that have the kernel send it `signal` when the thread that started it ends."""
    # setpriv and not a preexec_fn: no Python runs between fork and exec, and it stands behind the change of user,
    # which would otherwise clear the death signal.
    return ("setpriv", "--pdeathsig", signal, "--") if shutil.which("setpriv") else ()


def in_lasting_thread(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Starts a leashed process in the one thread that lives as long as we do: ours may be a pool's and end sooner."""
    answer: Future[subprocess.Popen[bytes]] = Future()

    def job() -> None:
        try:
            answer.set_result(start())
        except BaseException as error:
            answer.set_exception(error)

    _lasting_thread(os.getpid()).put(job)
    return answer.result()


@cache
def _lasting_thread(pid: int) -> queue.SimpleQueue[Callable[[], None]]:
    """One per pid, since a forked child inherits the cache and not the thread."""
    jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            jobs.get()()

    threading.Thread(target=work, name=f"rig-spawner-{pid}", daemon=True).start()
    return jobs


class Closable(Protocol):
    def close(self) -> None: ...


_open: dict[Closable, int] = {}


def close_at_exit(thing: Closable) -> None:
    """Has it closed when this process ends, if it is not by then."""
    _open[thing] = os.getpid()


def may_close(thing: Closable) -> bool:
    """What `close` asks first: False in a child that was forked from the owner and has only inherited the object."""
    if _open.get(thing, os.getpid()) != os.getpid():
        return False
    _open.pop(thing, None)
    return True


@atexit.register
def _close_all() -> None:
    with contextlib.ExitStack() as stack:
        for thing in _open:
            stack.callback(thing.close)


def free_port() -> int:
    """A free port of 127.0.0.1, below those that the kernel gives to outgoing connections: it stays free while the
    server is down between two starts."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def children(pid: int) -> list[int]:
    """The pids whose parent is `pid`; empty where there is no /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in brackets may hold blanks and brackets itself; state and parent come after the last one.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    """Whether a process still runs; a zombie does not."""
    return state(pid) not in {"", "Z", "X"}


def state(pid: int) -> str:
    """The letter of a process's state, as the kernel has it; empty where there is no such process, or no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def tail(log: Path, lines: int = 20) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
