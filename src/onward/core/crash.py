"""Named crash points: places where a test may end the process, in the very moment that hurts most.

In production they cost a comparison with None. `ONWARD_CRASH=save.before:3` ends the process with -9 at the third
passing of that point; tests inside one process install a hook of their own.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def crashpoint(name: str) -> None:
    """A moment in which a crash must change nothing."""
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Have `hook` called at every crash point; None takes it away."""
    global _hook  # noqa: PLW0603 -- one process, one hook: that is the point
    _hook = hook


def from_environment(wish: str) -> None:
    """Arm the crash point that ONWARD_CRASH names."""
    point, _, count = wish.partition(":")
    passed: Counter[str] = Counter()

    def hook(name: str) -> None:
        passed[name] += 1
        if name == point and passed[name] == int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)

    install(hook)


if wish := os.environ.get("ONWARD_CRASH"):
    from_environment(wish)
