"""Routes for intakes and their dead letters."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from onward.core.caller import ADMIN, SUBMIT
from onward.core.view_json import to_json
from onward.core.views import DeadLetter, DeadLetterContent, Intake
from onward.server.http.route import ApiResponse, RequestContext, Routes
from onward.server.schema.shape import Shape
from onward.server.schema.shapes import LongPageQuery, Name, PageQuery
from onward.service.intakes import MAX_BODY_BYTES

LETTER_BYTES = 32 << 20
"""Bytes that the handler of one dead letter holds in memory, about: the store has up to 16 MB of it, sealed and opened."""


class IntakeList(Shape):
    """Intakes, by name."""

    intakes: list[Intake]
    next: str | None = Field(None, description="The `cursor` of the next page; null at the end.")


class LetterPage(Shape):
    """Dead letters, newest first."""

    letters: list[DeadLetter]
    next: str | None


class LetterQuery(PageQuery):
    """Which dead letters."""

    intake: Name | None = None


class LetterBytes(Shape):
    """How much of the body of a dead letter to show."""

    body_bytes: Annotated[int, Field(ge=0, le=LETTER_BYTES // 2)] = MAX_BODY_BYTES


class Letters(Shape):
    """Which dead letters to change: give one of the three."""

    id: Name | None = None
    intake: Name | None = None
    all: Annotated[bool, Field(description="All dead letters that the caller sees.")] = False


class ChangedLetters(Shape):
    """How many dead letters were changed."""

    letters: int


routes = Routes("intakes")


@routes.add(
    "GET",
    "/api/intakes",
    "Intakes by name: the state of each, how many messages wait, and how many dead letters there are; a page at a time.",
    {200: ("A page of intakes.", IntakeList)},
    query=LongPageQuery,
)
async def intakes(context: RequestContext) -> ApiResponse:
    page = await context.service.intakes(limit=context.query.limit, cursor=context.query.cursor)
    return ApiResponse({"intakes": [to_json(intake) for intake in page], "next": page.next})


@routes.add(
    "GET",
    "/api/dead-letters",
    "Messages that could not become tasks, newest first, without their content.",
    {200: ("A page of dead letters.", LetterPage)},
    query=LetterQuery,
)
async def dead_letters(context: RequestContext) -> ApiResponse:
    page, cursor = await context.service.dead_letters(**context.query.model_dump())
    return ApiResponse({"letters": [to_json(letter) for letter in page], "next": cursor})


@routes.add(
    "POST",
    "/api/dead-letters/redrive",
    "Try dead letters again: one, those of an intake, or all. The intake does it within a second.",
    {202: ("They will be tried again.", ChangedLetters)},
    body=Letters,
    errors=(404,),
    scopes=(SUBMIT,),
)
async def redrive_letters(context: RequestContext) -> ApiResponse:
    body: Letters = context.body
    changed = await context.service.redrive_letters(body.id, intake=body.intake, all=body.all)
    return ApiResponse({"letters": changed}, 202)


@routes.add(
    "POST",
    "/api/dead-letters/drop",
    "Delete dead letters for good: one, those of an intake, or all.",
    {200: ("They are deleted.", ChangedLetters)},
    body=Letters,
    errors=(404,),
    scopes=(ADMIN,),
)
async def drop_letters(context: RequestContext) -> ApiResponse:
    body: Letters = context.body
    changed = await context.service.drop_letters(body.id, intake=body.intake, all=body.all)
    return ApiResponse({"letters": changed})


@routes.add(
    "GET",
    "/api/dead-letters/{id}",
    "One dead letter with its headers and its body.",
    {200: ("The dead letter.", DeadLetterContent)},
    query=LetterBytes,
    errors=(404,),
    loads=LETTER_BYTES,
)
async def dead_letter(context: RequestContext) -> ApiResponse:
    return ApiResponse(to_json(await context.service.dead_letter(context.path["id"], most=context.query.body_bytes)))
