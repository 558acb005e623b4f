"""A worker that traces into a file (`SPANS`), each span in a line of its own once it is over, for tests that kill it.

With `PLANT=replay` it has a fault: replayed steps get spans again.
"""

from __future__ import annotations

import asyncio
import os

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from onward import Onward
from onward.engine.shift import traced

provider = TracerProvider()
file = open(os.environ["SPANS"], "a", buffering=1)  # noqa: SIM115 -- as long as the process
provider.add_span_processor(
    SimpleSpanProcessor(ConsoleSpanExporter(out=file, formatter=lambda span: f"{span.to_json(None)}\n"))
)
trace.set_tracer_provider(provider)
if os.environ.get("PLANT") == "replay":
    traced.is_replayed = lambda _replay, _scope: False

app = Onward(lease_s=1.0, heartbeat_s=0.2, poll_s=0.05)


async def piece(n: int) -> int:
    await asyncio.sleep(0.02)
    return n


def plain_piece(n: int) -> int:
    return n


@app.task
async def walk(ctx, steps: int) -> int:
    done = 0
    for n in range(steps):
        done += await ctx.step(piece if n % 3 else plain_piece, n)
    done += sum(await ctx.gather(*[ctx.step(piece, n) for n in range(3)]))
    await (await ctx.submit(rest))
    return done


@app.task
async def rest(ctx) -> None:
    await ctx.step(piece, 0)
