"""The rig reads the lines of child processes, freezes and kills them, and leaves none behind."""

from __future__ import annotations

import time

import pytest

from rig import server
from rig.processes import Child

COUNTER = """
import time
for number in range(10**6):
    print("number", number)
    time.sleep(0.01)
"""


def test_lines() -> None:
    with Child.code("import sys; print('one'); print('two', sys.argv[1]); sys.exit(3)", "argument") as child:
        assert child.line() == "one"
        assert child.wait_for("two") == "two argument"
        with pytest.raises(EOFError):
            child.line()
        assert child.wait() == 3


def test_a_module_and_its_environment() -> None:
    with Child.module(
        "timeit", "-n1", "-r1", "import os; print(os.environ['THE_NAME'])", env={"THE_NAME": "x"}
    ) as child:
        assert child.line() == "x"


def test_silence_is_reported_with_the_earlier_lines() -> None:
    source = "import sys, time; print('hello'); print('alas', file=sys.stderr); time.sleep(60)"
    with Child.code(source) as child:
        child.line()
        with pytest.raises(TimeoutError, match=r"(?s)running.*hello.*alas"):
            child.wait_for("more", timeout=0.3)
        with pytest.raises(TimeoutError):
            child.wait(0.01)


def test_freeze_and_thaw() -> None:
    with Child.code(COUNTER) as child:
        child.wait_for("number 3")
        child.freeze()
        time.sleep(0.05)
        lines_before = len(child.lines)
        time.sleep(0.2)
        assert len(child.lines) == lines_before
        assert child.running
        child.thaw()
        child.wait_for(f"number {lines_before + 3}")


def test_kill9_and_terminate() -> None:
    with Child.code(COUNTER) as child:
        child.line()
        assert child.kill9() == -9
    source = "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(7))\nprint('ready')\nsignal.pause()"
    with Child.code(source) as child:
        child.line()
        child.terminate()
        assert child.wait() == 7


def test_close_takes_a_frozen_child_and_its_children() -> None:
    source = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid); time.sleep(60)"
    with Child.code(source) as child:
        grandchild = int(child.line())
        child.freeze()
    assert not child.running
    time.sleep(0.05)
    assert not server.alive(grandchild)


def test_a_child_dies_with_its_parent() -> None:
    source = "from rig.processes import Child; import time; print(Child.code('input()').pid); time.sleep(60)"
    source = source.replace("input()", "import time; time.sleep(60)")
    with Child.code(source) as parent:
        pid = int(parent.line())
        assert server.alive(pid)
        parent.kill9()
        end = time.monotonic() + 30
        while server.alive(pid) and time.monotonic() < end:
            time.sleep(0.01)
        assert not server.alive(pid)
