"""An app with one intake, for tests that start it as a process. `PLACE` names the place."""

from __future__ import annotations

import os
from typing import Any

from onward import Onward

app = Onward()


@app.task
async def ship(ctx: Any, n: int) -> int:
    return n


app.intake("orders", from_=f"shop/{os.environ.get('PLACE', 'ORDERS')}", task=ship)
