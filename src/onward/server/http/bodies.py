"""Bodies: strict JSON, bounded in size, depth and time, before anything else looks at it."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from onward.core import wire
from onward.server.http.problem import Problem
from onward.server.http.route import S, Shape

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds in which a body has to arrive."""

SMALL = 8_192
"""Bytes of a body or message that is parsed in the event loop. It takes a millisecond or two; a thread has its price too."""

MANY = 1_000
"""Entries of what has a shape, and errors that are told one by one."""

ARRIVING, STRANGE, WORKING = 64 << 20, 16 << 20, 8 << 20
"""Bytes of bodies that arrive at once from callers with a key and from callers without one, and bytes of bodies that are worked on."""


def parse(data: bytes) -> Any:
    """Strict JSON. Raises Problem for all that readers of JSON disagree about."""
    if (why := wire.oversized(data)) is not None:
        raise _bad(why)
    try:
        return _JSON.decode(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise _bad("it is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise _bad(str(error)) from None


def shaped(shape: type[S], value: Any, what: str) -> S:
    """The value in the shape that is asked for. Raises Problem that names each field that is wrong."""
    if isinstance(value, dict):
        _check_counts(shape, value, what)
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise Problem(422, "invalid_request", f"{what}: {_told(error)}") from None


def _check_counts(shape: type[Shape], value: dict[str, Any], what: str) -> None:
    """Refuse what would be wrong a hundred thousand times: pydantic finds and keeps every single error."""
    fields = shape.model_fields
    if len(value) > len(fields) + MANY:
        unknown = next(name for name in value if name not in fields)
        raise _unfit(f"{what}: {unknown!r:.80} is not one of its {len(fields)} names, and neither are many others")
    for name, field in fields.items():
        given = value.get(name)
        if isinstance(given, list | dict) and len(given) > MANY and "Any" not in str(field.annotation):
            raise _unfit(f"{what}: {name}: it has {len(given):,} entries, more than {MANY:,}")


async def body(data: bytes, shape: type[Shape], kind: str) -> Shape:
    """The body of a request in its shape; `kind` is its content type."""
    if not data:
        return shaped(shape, {}, "the body is empty")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise Problem(
            415, "not_json", f"the body is {kind or 'of no stated type':.80}; send `Content-Type: application/json`"
        )
    return await apart(data, lambda: shaped(shape, parse(data), "the body"))


async def apart(data: bytes, work: Callable[[], T]) -> T:
    """What is made of a body: here when it is small, in a thread when it is large, so that others are answered meanwhile."""
    return work() if len(data) <= SMALL else await asyncio.to_thread(work)


class Room:
    """Bytes of bodies that are in memory at once: of those that arrive, and of those that are parsed and worked on. The first bound
    refuses, because whoever sends slowly would make others wait; the second one lets bodies wait in line."""

    def __init__(self, arriving: int, working: int) -> None:
        self._arriving, self._free, self._size = arriving, working, working
        self._waiting = arriving
        self._line: collections.deque[tuple[int, asyncio.Future[None]]] = collections.deque()

    async def read(self, request: Request, most: int) -> bytes:
        """The whole body. Raises Problem when it is too large, too slow, packed, or when there are too many."""
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Problem(415, "encoded_body", "the body is compressed; send it as it is")
        length = request.headers.get("content-length")
        if length is not None and length.isdecimal() and (len(length) > 18 or int(length) > most):
            raise _too_large(most)
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._arrived(request.receive, most)
        except TimeoutError:
            raise Problem(
                408, "slow_body", f"the body did not arrive within {PATIENCE:g} s; nothing was written", _GOODBYE
            ) from None

    async def _arrived(self, receive: Receive, most: int) -> bytes:
        """All of it. Mostly it comes in one piece, and Starlette's own reader takes as long as the reading of the JSON."""
        data, more = await _piece(receive)
        if not more:
            if len(data) > most:
                raise _too_large(most)
            return data
        whole, held = bytearray(data), len(data)
        self._arriving -= held
        try:
            while more and len(whole) <= most:
                if self._arriving < 0:
                    raise _too_many(_GOODBYE)
                data, more = await _piece(receive)
                whole += data
                held += len(data)
                self._arriving -= len(data)
        finally:
            self._arriving += held
        if len(whole) > most:
            raise _too_large(most)
        return bytes(whole)

    @contextlib.asynccontextmanager
    async def working(self, size: int) -> AsyncIterator[None]:
        """While so many bytes are parsed and worked on. Who came first goes first."""
        size = min(size, self._size)
        if self._line or self._free < size:
            await self._turn(size)
        else:
            self._free -= size
        try:
            yield
        finally:
            self._leave(size)

    async def _turn(self, size: int) -> None:
        if self._waiting < size:
            raise _too_many({})
        place = size, asyncio.get_running_loop().create_future()
        self._line.append(place)
        self._waiting -= size
        try:
            await place[1]
        except asyncio.CancelledError:
            if place in self._line:
                self._line.remove(place)
                self._next()
            else:
                self._leave(size)  # it was this one's turn already
            raise
        finally:
            self._waiting += size

    def _leave(self, size: int) -> None:
        self._free += size
        self._next()

    def _next(self) -> None:
        while self._line and self._line[0][0] <= self._free:
            size, turn = self._line.popleft()
            self._free -= size
            if not turn.done():  # a caller that has just left gives its room back itself
                turn.set_result(None)


async def _piece(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def _told(error: ValidationError) -> str:
    if (wrong := error.error_count()) > MANY:
        return f"{wrong:,} things are wrong, too many to tell"
    found = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in found[:5]]
    return "; ".join(told).encode("utf-8", "replace").decode()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name!r:.80} comes twice in one object")
            seen.add(name)
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_constant)


def _unfit(why: str) -> Problem:
    return Problem(422, "invalid_request", why.encode("utf-8", "replace").decode())


def _bad(why: str) -> Problem:
    return Problem(400, "bad_json", f"the body is not JSON: {why}".encode("utf-8", "replace").decode())


_GOODBYE = {"Connection": "close"}
"""Whoever is refused before the end of the body may be sending for ever."""


def _too_many(headers: dict[str, str]) -> Problem:
    return Problem(503, "too_many_bodies", "the server has too many large bodies at once; come back", headers)


def _too_large(most: int) -> Problem:
    return Problem(
        413,
        "body_too_large",
        f"the body is larger than {most:,} bytes; leave what is large elsewhere and send its address",
        _GOODBYE,
    )
