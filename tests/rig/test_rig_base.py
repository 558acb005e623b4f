"""The base of the servers that the rig starts: data and port survive a kill, and no process is left."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from rig import base, server
from rig.base import Server
from rig.processes import Child

SOURCE = """
import http.server, os, pathlib, subprocess, sys
port, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
below = subprocess.Popen(["sleep", "60"])
# A daemon: a session of its own, and a parent that has ended.
subprocess.run([sys.executable, "-c", "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)"])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with (folder / "requests").open("a") as file:
            file.write("x")
        self.send_response(200)
        self.end_headers()
        self.wfile.write((folder / "requests").read_bytes())

print("hello from", os.environ["GREETING"], flush=True)
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class Counter(Server):
    """Answers with one letter for each request that it ever got."""

    title = "Counter"
    source = SOURCE

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, "-c", self.source, str(self.port), self.folder("data")]

    def environ(self) -> dict[str, str]:
        return {**os.environ, "GREETING": "the tests"}

    def ready(self) -> bool:
        return self.http_ready()

    def ask(self, timeout_s: float = 10) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=timeout_s) as answer:
            return len(answer.read())


def test_port_and_data_survive_kill_and_restart() -> None:
    with Counter() as counter:
        port, before = counter.port, counter.ask()
        counter.kill()
        assert counter.pid is None
        with pytest.raises(urllib.error.URLError):
            counter.ask()
        counter.start()
        counter.restart()
        assert counter.port == port
        assert counter.ask() > before
        assert counter.log.read_text().count("hello from the tests") == 3


def test_all_processes_end_also_a_daemon() -> None:
    with Counter() as counter:
        processes, home = counter.processes(), counter.home
        assert len(processes) == 3, "the server, its child, and its daemon"
        counter.kill()
        assert not any(map(server.alive, processes))
        processes = counter.start().processes()
    assert not any(map(server.alive, processes))
    assert not home.exists()


def test_a_frozen_server_keeps_its_connections() -> None:
    with Counter() as counter:
        counter.freeze()
        with pytest.raises(TimeoutError):
            counter.ask(0.3)
        assert {server.state(pid) for pid in counter.processes()} == {"T"}
        counter.thaw()
        assert counter.ask() > 0
        counter.freeze()
        counter.stop()
        assert counter.pid is None


def test_a_failed_start_shows_the_log() -> None:
    class Broken(Counter):
        source = "print('no license for port', __import__('sys').argv[1]); raise SystemExit(3)"

    broken = Broken()
    with pytest.raises(RuntimeError, match=rf"(?s)Counter did not start.*status 3.*no license for port {broken.port}"):
        broken.start()
    broken.close()


def test_a_silent_start_ends_within_its_bound() -> None:
    class Silent(Counter):
        source = "print('thinking', flush=True); __import__('time').sleep(60)"
        start_timeout_s = 0.5

    silent = Silent()
    with pytest.raises(RuntimeError, match=r"(?s)not ready within 0.5 s \(.*refused.*thinking"):
        silent.start()
    assert silent.pid is None
    silent.close()


@pytest.mark.parametrize("given", [False, True])
def test_the_first_start_moves_away_from_a_taken_port_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    monkeypatch.setattr(base, "MAX_PORTS_TRIED", 2)
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", 0))
        port = thief.getsockname()[1]
        counter = Counter(port=port) if given else Counter()
        counter.port = port
        if given:
            with pytest.raises(RuntimeError, match=f"port {port} is taken"):
                counter.start()
        else:
            assert counter.start().port != port
            assert counter.ask() > 0
        counter.close()


def test_a_directory_of_the_callers_is_kept(tmp_path: Path) -> None:
    with Counter(tmp_path / "home") as first:
        before = first.ask()
    with Counter(tmp_path / "home") as second:
        assert second.ask() > before


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_after_a_killed_test_process(end: signal.Signals) -> None:
    source = """
from tests.rig.test_rig_base import Counter
import time
counter = Counter().start()
print(counter.pid, counter.home)
print(*counter.processes())
time.sleep(60)
"""
    with Child.code(source) as test:
        pid, home = test.line().split()
        processes = [int(number) for number in test.line().split()]
        test.signal(end)
        test.wait()
    wait_until_gone([int(pid)])
    os.utime(Path(home) / "owner", (0, 0))
    with Counter():
        wait_until_gone(processes)
        assert not Path(home).exists()


def test_a_fork_does_not_close_the_server_of_its_parent() -> None:
    source = """
import os
from tests.rig.test_rig_base import Counter
with Counter() as counter:
    if os.fork() == 0:
        raise SystemExit
    os.wait()
    print(counter.ask())
"""
    with Child.code(source) as test:
        assert int(test.line()) > 0
        assert test.wait() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("namespace", [True, False])
def test_as_another_user(monkeypatch: pytest.MonkeyPatch, namespace: bool) -> None:
    if not namespace:
        monkeypatch.setattr(server, "guise", lambda: server.Guise(uid=server.NOBODY))

    class NeverRoot(Counter):
        never_root = True
        source = f"import os; print('uid', os.geteuid())\n{SOURCE}"

        def command(self) -> Sequence[str | Path]:
            return ["/usr/bin/env", "python3", "-c", self.source, str(self.port), self.folder("data")]

    with NeverRoot() as counter:
        counter.kill()
        counter.start()
        assert counter.log.read_text().count(f"uid {server.NOBODY}") == 2
        processes = counter.processes()
    assert len(processes) == 3
    assert not any(map(server.alive, processes))


def wait_until_gone(processes: Sequence[int]) -> None:
    deadline = time.monotonic() + 10
    while any(map(server.alive, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
