"""Bodies: strict JSON, bounded in size, depth and time, before anything else looks at it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from onward.core import wire
from onward.edge.calls import S, Shape
from onward.edge.problem import Problem

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive

PATIENCE = 30.0
"""Seconds in which a body has to arrive."""


async def read(request: Request, most: int) -> bytes:
    """The whole body. Raises Problem when it is too large, too slow, or packed."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Problem(415, "encoded_body", "the body is compressed; send it as it is")
    length = request.headers.get("content-length")
    if length is not None and length.isdecimal() and int(length) > most:
        raise _too_large(most)
    try:
        async with asyncio.timeout(PATIENCE):
            return await _arrived(request.receive, most)
    except TimeoutError:
        raise Problem(
            408, "slow_body", f"the body did not arrive within {PATIENCE:g} s; nothing was written", _GOODBYE
        ) from None


async def _arrived(receive: Receive, most: int) -> bytes:
    """All of it. Mostly it comes in one piece, and Starlette's own reader takes as long as the reading of the JSON."""
    data, more = await _piece(receive)
    whole = bytearray(data) if more else data
    while more and len(whole) <= most:
        data, more = await _piece(receive)
        whole += data
    if len(whole) > most:
        raise _too_large(most)
    return bytes(whole)


async def _piece(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def parse(data: bytes) -> Any:
    """Strict JSON. Raises Problem for all that readers of JSON disagree about."""
    if wire.too_deep(data):
        raise _bad(f"it is nested more than {wire.DEPTH} levels deep")
    try:
        return _JSON.decode(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise _bad("it is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise _bad(str(error)) from None


def shaped(shape: type[S], value: Any, what: str) -> S:
    """The value in the shape that is asked for. Raises Problem that names each field that is wrong."""
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise Problem(422, "invalid_request", f"{what}: {_told(error)}") from None


async def body(request: Request, shape: type[Shape], most: int) -> Shape:
    """The body of a request in its shape."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    data = await read(request, most)
    if not data:
        return shaped(shape, {}, "the body is empty")
    if kind != "application/json":
        raise Problem(
            415, "not_json", f"the body is {kind or 'of no stated type'}; send `Content-Type: application/json`"
        )
    return shaped(shape, parse(data), "the body")


def _told(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in found[:5]]
    return "; ".join(told).encode("utf-8", "replace").decode()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r:.80} comes twice in one object")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_constant)


def _bad(why: str) -> Problem:
    return Problem(400, "bad_json", f"the body is not JSON: {why}".encode("utf-8", "replace").decode())


_GOODBYE = {"Connection": "close"}
"""Whoever is refused before the end of the body may be sending for ever."""


def _too_large(most: int) -> Problem:
    return Problem(
        413,
        "body_too_large",
        f"the body is larger than {most:,} bytes; leave what is large elsewhere and send its address",
        _GOODBYE,
    )
