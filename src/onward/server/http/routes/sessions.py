"""Routes for people: sign in, sign out, and the sessions of all who signed in. `server/access/sign_in.py` does the work."""

from __future__ import annotations

import html
from typing import Annotated

from pydantic import Field
from starlette.responses import HTMLResponse, RedirectResponse, Response

from onward.core.view_json import to_json
from onward.core.views import Session
from onward.errors import OnwardError
from onward.server.access.sign_in import MAX_NEXT_CHARS, PENDING_S, SignIn
from onward.server.http import problem
from onward.server.http.problem import Problem
from onward.server.http.route import ApiResponse, RequestContext, Routes
from onward.server.schema.shape import Shape
from onward.server.schema.shapes import LongPageQuery

MAX_PARAMETER_CHARS = 8_192
"""Characters of one parameter that the identity provider gives the browser. A longer one is not read."""

PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
"""Headers of all responses that have to do with a sign-in: their addresses have codes, and their headers have cookies."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Sign-in · Onward</title>
<link rel="stylesheet" href="{base}/console/style.css"><link rel="stylesheet" href="{base}/console/pages.css"></head>
<body><section class="sign-in alone"><div class="sign-in-card"><h1>You are not signed in</h1><p>{sentence}</p>
<p><a class="button main" href="{base}/">Go to the sign-in</a></p></div></section></body></html>
"""
_PAGE_POLICY = "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


class SignInQuery(Shape):
    """The page of the console to show after the sign-in."""

    next: Annotated[str, Field(max_length=MAX_NEXT_CHARS, pattern=r"^/[!-~]*$")] = "/"


class SessionList(Shape):
    """Sessions, the oldest first."""

    sessions: list[Session]
    next: str | None = Field(None, description="The `cursor` of the next page; null at the end.")


routes = Routes("access")


@routes.add(
    "GET",
    "/api/sign-in",
    "Begin the sign-in of a person: sends the browser to the identity provider.",
    {303: ("To the identity provider.", None)},
    query=SignInQuery,
    errors=(404, 502),
    open=True,
    loads=0,
)
async def sign_in(context: RequestContext) -> ApiResponse:
    flow = _flow(context)
    begun = await flow.begin(context.query.next)
    response = RedirectResponse(begun.url, 303, PRIVATE)
    flow.pending_cookie.set(response, begun.cookie, PENDING_S)
    return ApiResponse(response=response)


@routes.add(
    "GET",
    "/api/sign-in/callback",
    "The end of a sign-in: the identity provider sends the browser here. It gets the cookie of a session, or a page with the reason why not.",
    {303: ("To the console.", None)},
    errors=(403, 404, 502),
    open=True,
    loads=0,
)
async def sign_in_callback(context: RequestContext) -> ApiResponse:
    flow, server = _flow(context), context.server
    parameters = {
        name: value for name, value in context.request.query_params.items() if len(value) <= MAX_PARAMETER_CHARS
    }
    try:
        ended = await flow.finish(parameters, flow.pending_cookie.value(context.request))
    except OnwardError as error:
        response: Response = _page(flow, error)
    else:
        response = RedirectResponse(ended.url, 303, PRIVATE)
        assert server.authenticator.sessions is not None
        server.authenticator.sessions.cookie.set(response, ended.new.token, flow.max_s)
    flow.pending_cookie.set(response, "", 0)
    return ApiResponse(response=response)


@routes.add(
    "POST",
    "/api/sign-out",
    "Sign out: end the session of the caller. With a key it does nothing.",
    {204: ("The session has ended.", None)},
    loads=0,
)
async def sign_out(context: RequestContext) -> ApiResponse:
    """For every caller, whatever its scopes are."""
    await context.service.sign_out()
    response = Response(status_code=204, headers=PRIVATE)
    if (sessions := context.server.authenticator.sessions) is not None:
        sessions.forget(context.service.caller)
        sessions.cookie.set(response, "", 0)
    return ApiResponse(response=response)


@routes.add(
    "GET",
    "/api/sessions",
    "The sessions of people who are signed in, the oldest first, a page at a time.",
    {200: ("A page of sessions.", SessionList)},
    query=LongPageQuery,
)
async def sessions(context: RequestContext) -> ApiResponse:
    page = await context.service.sessions(limit=context.query.limit, cursor=context.query.cursor)
    return ApiResponse({"sessions": [to_json(session) for session in page], "next": page.next})


@routes.add(
    "POST",
    "/api/sessions/{id}/revoke",
    "End the session of a person: within two seconds the server refuses requests with it.",
    {200: ("The session.", Session)},
    errors=(404,),
)
async def revoke_session(context: RequestContext) -> ApiResponse:
    return ApiResponse(to_json(await context.service.revoke_session(context.path["id"])))


def _flow(context: RequestContext) -> SignIn:
    if (flow := context.server.sign_in) is None:
        raise Problem(404, "no_sign_in", "this server has no identity provider; ONWARD_OIDC_ISSUER names one")
    return flow


def _page(flow: SignIn, error: OnwardError) -> HTMLResponse:
    """A page for the person in front of the browser: this address is opened by a redirect and not by the console."""
    detail = str(problem.document(error)["detail"])
    sentence = f"{detail[:1].upper()}{detail[1:]}."
    base = html.escape(flow.public_url, quote=True)
    page = _PAGE.format(base=base, sentence=html.escape(sentence))
    return HTMLResponse(
        page, error.status, {**PRIVATE, "Content-Security-Policy": _PAGE_POLICY, "X-Content-Type-Options": "nosniff"}
    )
