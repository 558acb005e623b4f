"""An app of another framework in which ours is mounted, as in the guide."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.server.shop import app


@contextlib.asynccontextmanager
async def lifespan(_site: Starlette) -> AsyncIterator[None]:
    async with app, app.worker():
        yield


site = Starlette(routes=[Mount("/onward", app=app.asgi(keyless=True))], lifespan=lifespan)

if __name__ == "__main__":
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        print(bound.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(site)).run(sockets=[bound])
