"""usage: what models took, by agent, model, key or day."""

from __future__ import annotations

from argparse import Namespace

from onward.errors import UsageError


async def usage(args: Namespace) -> int:
    """`onward usage`."""
    raise UsageError("not yet")
