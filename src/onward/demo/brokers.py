"""The app of `onward demo brokers`: orders come in over Redis, and events leave over NATS."""

from __future__ import annotations

import os

from onward.app.application import Onward
from onward.demo import ORDERS_STREAM, SHIPPED_SUBJECT
from onward.engine.context.context import Context

app = Onward(
    brokers={
        "orders": os.environ.get("ONWARD_BROKER_ORDERS", "redis://127.0.0.1:6379/0"),
        "events": os.environ.get("ONWARD_BROKER_EVENTS", "nats://127.0.0.1:4222"),
    }
)


async def pack(order: str) -> str:
    """Pack an order."""
    return f"{order} is packed"


@app.task(name="demo.ship")
async def ship(ctx: Context, order: str) -> str:
    """Pack an order, and send it off."""
    return f"{await ctx.step(pack, order)} and on its way"


app.intake("orders", from_=f"orders/{ORDERS_STREAM}", task=ship)
app.publish("shipped", to=f"events/{SHIPPED_SUBJECT}", types=["task.completed"])
