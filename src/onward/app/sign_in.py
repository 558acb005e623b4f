"""The sign-in of people, made from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.config import Settings, read_secret
from onward.core.clock import Clock
from onward.core.identity import ClaimRules, parse_role_map
from onward.errors import UsageError
from onward.service.service import Service

if TYPE_CHECKING:
    from onward.server.access.session_auth import SessionAuthenticator
    from onward.server.access.sign_in import SignIn

CALLBACK = "/api/sign-in/callback"


def make_sign_in(settings: Settings, service: Service, clock: Clock) -> tuple[SignIn, SessionAuthenticator]:
    """The sign-in with the provider of the settings, and the check of its sessions."""
    try:
        from onward.server.access.oidc import Client, Provider  # noqa: PLC0415 -- an extra
        from onward.server.access.session_auth import Cookie, SessionAuthenticator  # noqa: PLC0415 -- an extra
        from onward.server.access.sign_in import SignIn  # noqa: PLC0415 -- an extra
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'onward[oidc]'") from None
    public_url = settings.public_url.rstrip("/")
    client = Client(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        client_secret=read_secret("oidc_client_secret", settings.oidc_client_secret),
        scopes=settings.oidc_scopes,
        redirect_uri=public_url + CALLBACK,
    )
    rules = ClaimRules(
        person_claim=settings.oidc_person_claim,
        roles_claim=settings.oidc_roles_claim,
        role_map=parse_role_map(settings.oidc_roles),
        tenant_claim=settings.oidc_tenant_claim,
        no_tenant=settings.oidc_no_tenant,
    )
    sign_in = SignIn(
        Provider(client, clock),
        rules,
        service.sessions,
        service.audit,
        clock,
        issuer=settings.oidc_issuer,
        public_url=public_url,
        idle_s=settings.session_idle_s,
        max_s=settings.session_max_s,
    )
    return sign_in, SessionAuthenticator(service.sessions, clock, Cookie("onward", public_url))
