"""Request bodies: strict JSON, with limits on size, depth and time, before any other code reads it."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from onward.core import wire
from onward.server.http.problem import Problem
from onward.server.http.turns import ByteTurns
from onward.server.schema.shape import S, Shape

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive

T = TypeVar("T")

BODY_TIMEOUT_S = 30.0
"""Seconds in which a body must arrive."""

INLINE_BYTES = 8_192
"""A body or message up to this size is parsed in the event loop. That takes a millisecond or two; a thread would cost as much."""

MAX_ENTRIES = 1_000
"""The most entries of a list or object that has a schema, and the most validation errors that are described."""

MAX_ARRIVING_BYTES, MAX_UNVERIFIED_BYTES, MAX_PROCESSING_BYTES = 64 << 20, 16 << 20, 8 << 20
"""Bytes of bodies that may arrive at once: from callers with a key, and from callers not yet verified; and bytes of bodies that
may be parsed and handled at once."""

TENANT_SHARE = 4
"""Arriving bodies of one tenant take at most this part of the bytes that may arrive at once: a fourth."""


def parse(data: bytes) -> Any:
    """Strict JSON. Raises Problem for everything that JSON parsers read differently."""
    try:
        return wire.parse_foreign(data)
    except ValueError as error:
        raise _bad_json(str(error)) from None


def validate(shape: type[S], value: Any, subject: str) -> S:
    """The value as an instance of `shape`. Raises Problem, which names each wrong field."""
    if isinstance(value, dict):
        _check_counts(shape, value, subject)
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise Problem(422, "invalid_request", f"{subject}: {_describe_errors(error, shape)}") from None


def _check_counts(shape: type[Shape], value: dict[str, Any], subject: str) -> None:
    """Refuse a value that would be wrong a hundred thousand times: pydantic collects every single error."""
    fields = shape.model_fields
    if len(value) > len(fields) + MAX_ENTRIES:
        unknown = next(name for name in value if name not in fields)
        raise _invalid(
            f"{subject}: {unknown!r:.80} is not one of its {len(fields)} fields, and neither are many others"
        )
    for name, field in fields.items():
        entries = value.get(name)
        if isinstance(entries, list | dict) and len(entries) > MAX_ENTRIES and "Any" not in str(field.annotation):
            raise _invalid(f"{subject}: {name}: it has {len(entries):,} entries, more than {MAX_ENTRIES:,}")


async def parse_body(data: bytes, shape: type[Shape], kind: str) -> Shape:
    """The body of a request as an instance of `shape`; `kind` is its content type."""
    if not data:
        return validate(shape, {}, "the body is empty")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise Problem(
            415, "not_json", f"the body is {kind or 'of no stated type':.80}; send `Content-Type: application/json`"
        )
    return await run_off_loop(data, lambda: validate(shape, parse(data), "the body"))


async def run_off_loop(data: bytes, work: Callable[[], T]) -> T:
    """The result of `work` on a body: called here if the body is small, in a thread if it is large, so that other requests go
    on meanwhile."""
    return work() if len(data) <= INLINE_BYTES else await asyncio.to_thread(work)


class BodyLimiter(ByteTurns):
    """Limits the bytes of bodies in memory: of those that arrive, and of those that are parsed and handled. Over the first
    limit a body is refused, because a slow sender would make others wait; over the second limit a body waits for its turn."""

    def __init__(self, arriving: int, processing: int) -> None:
        super().__init__(processing, arriving)
        self._arriving = arriving
        self._tenant_share, self._by_tenant = arriving // TENANT_SHARE, collections.Counter[str]()

    def too_many(self) -> Problem:
        return _too_many({})

    def processing(self, size: int) -> AbstractAsyncContextManager[None]:
        """Hold this many bytes while the body is parsed and handled. First come, first served."""
        return self.hold(size)

    async def read(self, request: Request, max_bytes: int, tenant: str | None = None) -> bytes:
        """The whole body. Raises Problem if it is too large, too slow or compressed, or if there are too many bodies, in all or of
        this tenant."""
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Problem(415, "encoded_body", "the body is compressed; send it as it is")
        length = request.headers.get("content-length")
        if length is not None and length.isdecimal() and (len(length) > 18 or int(length) > max_bytes):
            raise _too_large(max_bytes)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                return await self._read_all(request.receive, max_bytes, tenant)
        except TimeoutError:
            raise Problem(
                408, "slow_body", f"the body did not arrive within {BODY_TIMEOUT_S:g} s; nothing was written", _CLOSE
            ) from None

    async def _read_all(self, receive: Receive, max_bytes: int, tenant: str | None = None) -> bytes:
        """All chunks of the body. Mostly there is one chunk: then this is much faster than Starlette's own reader, which takes
        as long as parsing the JSON."""
        data, more = await _next_chunk(receive)
        if not more:
            if len(data) > max_bytes:
                raise _too_large(max_bytes)
            return data
        whole, held = bytearray(data), len(data)
        self._count_arriving(held, tenant)
        try:
            while more and len(whole) <= max_bytes:
                if self._arriving < 0:
                    raise _too_many(_CLOSE)
                if tenant is not None and self._by_tenant[tenant] > max(self._tenant_share, max_bytes):
                    raise _too_many_of_tenant()
                data, more = await _next_chunk(receive)
                whole += data
                held += len(data)
                self._count_arriving(len(data), tenant)
        finally:
            self._count_arriving(-held, tenant)
        if len(whole) > max_bytes:
            raise _too_large(max_bytes)
        return bytes(whole)

    def _count_arriving(self, size: int, tenant: str | None) -> None:
        self._arriving -= size
        if tenant is not None:
            self._by_tenant[tenant] += size
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]


async def _next_chunk(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def _describe_errors(error: ValidationError, shape: type[Shape]) -> str:
    if (wrong := error.error_count()) > MAX_ENTRIES:
        return f"{wrong:,} errors, too many to list"
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    sentences = [f"{'.'.join(map(str, item['loc'])) or 'it'}: {item['msg']}" for item in errors[:5]]
    if any(item["type"] == "extra_forbidden" and len(item["loc"]) == 1 for item in errors[:5]):
        sentences.append(f"it takes {', '.join(shape.model_fields) or 'nothing'}")
    return "; ".join(sentences).encode("utf-8", "replace").decode()


def _invalid(reason: str) -> Problem:
    return Problem(422, "invalid_request", reason.encode("utf-8", "replace").decode())


def _bad_json(reason: str) -> Problem:
    return Problem(400, "bad_json", f"the body is not JSON: {reason}".encode("utf-8", "replace").decode())


_CLOSE = {"Connection": "close"}
"""A client that is refused before the end of its body may never stop sending, so the server closes the connection."""


def _too_many(headers: dict[str, str]) -> Problem:
    return Problem(503, "too_many_bodies", "the server has too many large bodies at once; try again later", headers)


def _too_many_of_tenant() -> Problem:
    return Problem(429, "too_many_bodies", "this tenant sends too many large bodies at once; try again later", _CLOSE)


def _too_large(max_bytes: int) -> Problem:
    return Problem(
        413,
        "body_too_large",
        f"the body is larger than {max_bytes:,} bytes; store large data elsewhere and send its address",
        _CLOSE,
    )
