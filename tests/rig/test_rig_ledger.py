"""The ledger keeps every line whole, with many writers and after kills."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rig.ledger import Ledger
from rig.processes import Child

WRITER = """
import sys, pathlib
from rig.ledger import Ledger
ledger = Ledger(pathlib.Path(sys.argv[1]))
for number in range(500):
    ledger.write(sys.argv[2], number, "x" * 5000)
"""


def test_written_lines_are_read_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    assert ledger.read() == []
    ledger.write("charge", 7, None)
    pickle.loads(pickle.dumps(ledger)).write("line\nbreak", {"a": [1]})
    assert ledger.read() == [["charge", 7, None], ["line\nbreak", {"a": [1]}]]


def test_counts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    for order in ("a", "b", "a"):
        ledger.write("charge", order)
    assert ledger.counts(by=1) == {"a": 2, "b": 1}
    assert ledger.counts(by=lambda line: line[0] + line[1]) == {"chargea": 2, "chargeb": 1}
    assert sorted(ledger.counts().values()) == [1, 2]


def test_lines_of_many_processes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with ThreadPoolExecutor() as pool:
        children = [Child.code(WRITER, str(path), name) for name in "abcd"]
        assert list(pool.map(Child.wait, children)) == [0] * 4
        for child in children:
            child.close()
    lines = Ledger(path).read()
    assert Ledger(path).counts(by=0) == dict.fromkeys("abcd", 500)
    assert [line[1] for line in lines if line[0] == "a"] == list(range(500))


def test_a_line_survives_its_writer(tmp_path: Path) -> None:
    source = "import sys; from rig.ledger import Ledger; Ledger(sys.argv[1]).write(1); print(); input()"
    path = tmp_path / "ledger"
    killed = source.replace("input()", "import os; os.kill(os.getpid(), 9)")
    with Child.code(killed, str(path)) as child:
        assert child.wait() == -9
    assert Ledger(path).read() == [[1]]
