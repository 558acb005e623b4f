"""sessions: list and revoke the sessions of people who signed in."""

from __future__ import annotations

import time
from argparse import Namespace

from rich.text import Text

from onward.cli.args import connect
from onward.cli.output.screen import Screen
from onward.cli.output.table import Column, fixed
from onward.cli.output.text import age, count, local, safe
from onward.core.view_json import to_json
from onward.core.views import Session
from onward.errors import NotFound

SESSIONS = (
    fixed("ID"),
    Column("NAME"),
    Column("PERSON", 10, drop=2),
    Column("TENANT", drop=3),
    Column("ROLES", 8),
    fixed("USED", drop=1),
    Column("UNTIL", 10),
)


async def list_sessions(args: Namespace) -> int:
    """`onward sessions`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        sessions = await connect.everything(backend.sessions)
    now = time.time()
    rows = [
        (
            Text(session.id),
            Text(safe(session.name)),
            Text(safe(session.person)),
            Text(safe(session.tenant or "")),
            Text(" ".join(session.roles)),
            Text(f"{age(now - session.last_used_at)} ago", "dim"),
            Text(local(session.until)),
        )
        for session in sessions
    ]
    empty = "no sessions: no person is signed in; people sign in with the identity provider of ONWARD_OIDC_ISSUER"
    return screen.table({"sessions": [to_json(session) for session in sessions]}, SESSIONS, rows, empty)


async def revoke(args: Namespace) -> int:
    """`onward sessions revoke`."""
    screen = Screen(args)
    async with connect.open_backend(args) as backend:
        ids = _matching(await connect.everything(backend.sessions), args.session)
        ended = [await backend.revoke_session(session_id) for session_id in ids]
    if screen.json:
        screen.document({"sessions": [to_json(session) for session in ended]})
    else:
        people = ", ".join(sorted({safe(session.name) for session in ended}))
        screen.say(
            f"{count(len(ended), 'session')} of {people} ended; within two seconds requests with "
            f"{'it' if len(ended) == 1 else 'them'} are refused"
        )
    return 0


def _matching(sessions: list[Session], given: str) -> list[str]:
    """All sessions of a person, by their id or name; otherwise one session, by its id or the first or last characters of it."""
    people = {session.person for session in sessions if given in {session.person, session.name}}
    if len(people) == 1:
        return [session.id for session in sessions if session.person in people]
    if people:
        raise connect.Ambiguous(given, "person", [(person, given) for person in sorted(people)])
    not_found = NotFound(f"there is no session {given!r:.80}; `onward sessions` lists them")
    return [connect.match_id(given, "session", [(session.id, session.name) for session in sessions], not_found)]
