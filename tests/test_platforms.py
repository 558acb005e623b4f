"""macOS and Windows: each module can be imported without the modules and names that only POSIX has. What cannot work refuses."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onward.app.connect import open_shelf
from onward.artifacts import directory
from onward.cli.output.screen import Screen
from onward.cli.processes.start import supervise
from onward.engine.worker.presence import PresenceWatch
from onward.errors import BadSetting, UsageError
from tests.kit import row

ROOT = Path(__file__).parents[1]

HIDDEN = {
    "modules": ["fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty", "uvloop"],
    "os": [
        *("fork", "forkpty", "getuid", "geteuid", "getgid", "getegid", "getpgid", "getpgrp", "getsid", "killpg", "setsid", "uname"),
        *("mkfifo", "chown", "fchown", "statvfs", "pread", "pwrite", "WNOHANG", "nice", "getloadavg", "sysconf", "wait", "pipe2"),
        *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_SYNC", "O_NOCTTY", "O_DIRECT", "O_TMPFILE"),
        *("pidfd_open", "sched_getaffinity", "eventfd", "memfd_create", "setns", "splice"),  # not on macOS either
    ],
    "signal": [
        *("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGPIPE", "SIGCHLD", "SIGALRM", "SIGSTOP", "SIGCONT"),
        *("SIGQUIT", "SIGTSTP", "SIGPWR", "SIGRTMIN", "SIGPOLL", "alarm", "setitimer", "pthread_sigmask", "sigwait"),
    ],
    "socket": ["AF_UNIX", "AF_NETLINK", "AF_VSOCK", "SO_PEERCRED", "SO_REUSEPORT", "TCP_USER_TIMEOUT"],
    "select": ["epoll", "poll"],
}  # fmt: skip
"""Modules and names that Windows does not have. Some of them macOS does not have either."""

IMPORT_ALL = """
import importlib, json, os, pkgutil, sys
hidden, planted = json.loads(sys.argv[1]), json.loads(sys.argv[2])
import onward

loaded = []
for _, name, _ in pkgutil.walk_packages(onward.__path__, "onward."):  # the other libraries, as they are on this machine
    if name.endswith("__main__"):
        continue
    try:
        importlib.import_module(name)
    except ImportError:
        continue  # an extra is missing
    loaded.append(name)
for name in [name for name in sys.modules if name.partition(".")[0] == "onward"]:
    del sys.modules[name]
for name in hidden.pop("modules"):
    sys.modules[name] = None
for module, attributes in hidden.items():
    for name in attributes:
        if hasattr(importlib.import_module(module), name):
            delattr(importlib.import_module(module), name)
os.supports_dir_fd.clear()
sys.platform = "win32"

def attempt(name, work):
    try:
        work(name)
    except Exception as error:
        return [f"{name}: {error!r}"]
    return []

failed = [line for name in loaded for line in attempt(name, importlib.import_module)]
found = [line for source in planted for line in attempt(source, exec)]
print(json.dumps([len(loaded), failed, found]))
"""


PLANTED = ["import fcntl", "import os; os.O_NOFOLLOW", "from signal import SIGKILL", "import select; select.poll()"]


@pytest.mark.slow
def test_each_module_can_be_imported_where_posix_is_missing() -> None:
    command = [sys.executable, "-c", IMPORT_ALL, json.dumps(HIDDEN), json.dumps(PLANTED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    count, failed, found = json.loads(done.stdout)
    assert failed == [], "import it inside the function that needs it, and say what happens without it"
    assert count > 400
    assert len(found) == len(PLANTED), "the check finds each fault"


# ── Windows ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_sends_no_signal_to_look_for_another_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """`os.kill(pid, 0)` would send Ctrl-C there."""
    signals: list[int] = []
    dead: list[str] = []
    watch = PresenceWatch(dead.append, one_machine=False)
    other = row("other", machine=watch._machine, pid=os.getpid() + 1)
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        windows.setattr(os, "kill", lambda _pid, number: signals.append(number))
        windows.delattr(os, "pidfd_open", raising=False)
        watch.watch([other])
    assert (signals, dead) == ([], [])


def test_a_supervisor_is_refused_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(argparse.Namespace(json=True))
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        with pytest.raises(UsageError, match="Windows has no --processes"):
            supervise(screen, [["worker", "shop:app"]], reload=False)


def test_a_folder_for_artifacts_is_refused_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "SUPPORTED", False)
    with pytest.raises(BadSetting, match="Windows has no safe way to a folder"):
        open_shelf("./artifacts")
