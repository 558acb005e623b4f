"""Which versions of a framework an integration works with."""

from __future__ import annotations

import importlib.metadata
import re

from onward.errors import UsageError


def check_version(package: str, least: str, below: str, extra: str) -> None:
    """Raises UsageError when the installed version of a package is older than `least`, or not below `below`, and ImportError when the package
    is not installed."""
    try:
        installed = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"{package} is not installed; pip install 'onward[{extra}]'", name=package) from None
    if _numbers(least) <= _numbers(installed) < _numbers(below):
        return
    age = "too old" if _numbers(installed) < _numbers(least) else "newer than this version of Onward knows"
    raise UsageError(
        f"{package} {installed} is {age}: {least} or newer, and below {below}, is needed; pip install 'onward[{extra}]'"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
