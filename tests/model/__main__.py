"""`python -m tests.model`: the whole search. `python -m tests.model "no fence"`: one with a fault planted."""

from __future__ import annotations

import sys

from tests.model.checker import Search
from tests.model.model import FAULTS, Protocol


def main(words: list[str]) -> int:
    planted = " ".join(words)
    if planted and planted not in FAULTS:
        print("one of:", *FAULTS, sep="\n    ")
        return 2
    report = Search(Protocol(planted=planted)).run()
    print(report)
    return bool(report.wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
