"""A plugin of pytest: it runs `async def` tests where no other plugin does, so that tests of handlers need pytest alone.

pytest finds the plugin by its entry point. Tests that pytest-asyncio or anyio run are left to them. Each test gets an event loop of its
own. `-p no:onward` turns the plugin off.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any


def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    """Run an async test that no other plugin runs. Plugins that run marked tests come first, or give pytest a plain function."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
