"""People with sessions, at a server that has an identity provider."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any

from onward import Onward
from onward.core.identity import Identity

CONSOLE = {"Onward-Console": "1"}
"""The header of the console."""

ISSUER = "https://id.example.com"


def settings(public_url: str, **more: Any) -> dict[str, Any]:
    """The settings of a server with a provider. Without a sign-in, the provider is never called."""
    return {"oidc_issuer": ISSUER, "oidc_client_id": "onward", "public_url": public_url, **more}


def free_address() -> tuple[socket.socket, str]:
    """A bound socket and its address: the public address is a setting, and so is there before the server."""
    bound = socket.socket(proto=socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    return bound, f"http://127.0.0.1:{bound.getsockname()[1]}"


async def signed_in(
    app: Onward, person: str, roles: Iterable[str], tenant: str | None = None, **times: float
) -> dict[str, str]:
    """The headers of a browser in which this person is signed in."""
    identity = Identity(person, f"{person}@example.com", frozenset(roles), tenant)
    new = await app.service.sessions.begin(identity, **{"idle_s": 28_800.0, "max_s": 86_400.0, **times})
    origin = app.settings.public_url
    name = "__Host-onward" if origin.startswith("https") else "onward"
    return {**CONSOLE, "Cookie": f"{name}={new.token}", "Origin": origin}
