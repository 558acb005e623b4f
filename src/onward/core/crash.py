"""Named crash points: places where a test may kill the process, at the worst moments.

In production a crash point costs a comparison with None. `ONWARD_CRASH=save.before:3` kills the process (-9) when it passes that point
for the third time. Tests inside of one process install a hook of their own.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def crashpoint(name: str) -> None:
    """Marks a moment at which a crash must do no harm."""
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Call `hook` at every crash point; None removes it."""
    global _hook  # noqa: PLW0603 -- one process, one hook: that is the point
    _hook = hook


def from_environment(setting: str) -> None:
    """Arm the crash point that ONWARD_CRASH names."""
    point, _, count = setting.partition(":")
    passed: Counter[str] = Counter()

    def hook(name: str) -> None:
        passed[name] += 1
        if name == point and passed[name] == int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)

    install(hook)


if _setting := os.environ.get("ONWARD_CRASH"):
    from_environment(_setting)
