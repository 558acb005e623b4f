"""Calls: what can be asked over HTTP, as rows of a table. The server and the OpenAPI document are both made from it, so that
neither can say what the other does not.

A row names method and path, what may come with it, who may ask, and every answer it can give. What it does is a function of one
`RequestContext` and returns an `ApiResponse`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict

from onward.server.access.service import AuthorizedService

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from onward.server.http.app import Edge

S = TypeVar("S", bound="Shape")


class Shape(BaseModel):
    """What comes in or goes out. Names that nobody knows are refused, so that a slip of the pen is told."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


@dataclasses.dataclass(slots=True)
class RequestContext:
    """One request, checked as far as its row says."""

    door: AuthorizedService
    path: Mapping[str, str]
    query: Any
    """What the row's `query` is, or None."""
    body: Any
    """What the row's `body` is, or None."""
    request: Request
    edge: Edge

    def header(self, name: str) -> str | None:
        """A header of the request."""
        return self.request.headers.get(name)


@dataclasses.dataclass(slots=True)
class ApiResponse:
    """What goes back: JSON, unless `response` is something else altogether."""

    value: Any = None
    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    response: Response | None = None


Does = Callable[[RequestContext], Awaitable[ApiResponse]]


@dataclasses.dataclass(frozen=True, slots=True)
class ApiRoute:
    """One row of the table."""

    method: str
    path: str
    name: str
    does: Does
    says: str
    """One sentence for the reference."""
    answers: Mapping[int, tuple[str, Any]]
    """For each status of success: what it means, and the shape of its body (None: no body)."""
    body: type[Shape] | None = None
    query: type[Shape] | None = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Headers that mean something here, and what."""
    errors: tuple[int, ...] = ()
    """Statuses of problems it can answer with, beside those that every call can."""
    media: str = "application/json"
    """The type of the body of its first success."""
    streams: bool = False
    """Whether it also answers with events, to whoever asks for them."""
    open: bool = False
    """Whether it can be asked without a key."""
    tag: str = "tasks"
    needs: tuple[str, ...] = ()
    """Scopes, of which the caller has one, or the body is not read. What the door demands beyond that is its business."""
