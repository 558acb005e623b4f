"""Lazy imports for the public modules: `import onward` must not import pydantic, a database driver or an extra.

A public module names the inner module of each public name. That module is imported when a program first uses the name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy(module: dict[str, Any], homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module, from its `globals()`. `homes` maps each public name to `module:name`, or to the
    module alone where the name is the same there."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        home, _, inner = homes[name].partition(":")
        value = module[name] = getattr(importlib.import_module(home), inner or name)
        return value

    return get, lambda: sorted({*module, *homes})
