"""A client of one OpenID Connect provider: the authorization code flow with PKCE, and the checks of the ID token.

The operator configures the provider, so its address is trusted: it may be a private one. Its answers are bounded in time and bytes, and
no redirect is followed. The provider's keys are read again when a token names an unknown one, at most every KEYS_INTERVAL_S.

PyJWT verifies the signature. This module checks the claims itself, against the clock that it is given.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx2
import jwt

from onward import certificates
from onward.core.clock import Clock
from onward.core.identity import SignInRefused
from onward.errors import OnwardError

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a public key. `none` and the HMACs (`HS…`), whose key would be the client secret or a public key, are not among them."""

LEEWAY_S: Final = 60.0
"""Seconds by which the clocks of the provider and of this machine may differ."""

CALL_TIMEOUT_S: Final = 10.0
MAX_ANSWER_BYTES: Final = 1 << 20
MAX_TOKEN_BYTES: Final = 65_536
MAX_KEYS: Final = 100
MIN_RSA_BITS: Final = 2048

METADATA_TTL_S: Final = 600.0
"""Seconds for which the provider's metadata and keys are cached. A key that the provider withdraws is accepted for at most so long."""

RETRY_S: Final = 5.0
"""Seconds before a provider that gave no metadata is asked again: until then sign-ins fail at once, and do not wait in a line."""

KEYS_INTERVAL_S: Final = 30.0
"""Seconds between two reads of the provider's keys because of an unknown key: tokens cannot make this server call the provider more often."""


class ProviderUnavailable(OnwardError):
    """The identity provider does not answer, or its answer makes no sense. The log of the server has the cause."""

    code = "identity_provider_unavailable"
    status = 502

    def __init__(self, issuer: str, why: str) -> None:
        super().__init__(f"the identity provider {issuer} cannot be used now: {why}; try again later")


class Client(NamedTuple):
    """The registration of this server at the provider."""

    issuer: str
    client_id: str
    client_secret: str
    """Empty: a public client, which PKCE alone protects."""
    scopes: str
    redirect_uri: str


class Tokens(NamedTuple):
    """What the provider gives for a code. The access token is used once, for the claims of the person, and is not kept."""

    id_token: str
    access_token: str


class _Keys(NamedTuple):
    read_at: float
    by_id: Sequence[Mapping[str, Any]]


class Provider:
    """One OpenID Connect provider. One per process."""

    def __init__(self, client: Client, clock: Clock, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._client, self._clock, self._transport = client, clock, transport
        self._metadata: tuple[float, dict[str, Any]] | None = None
        self._failed: tuple[float, ProviderUnavailable] | None = None
        """When the last read of the metadata failed, and why."""
        self._keys: _Keys | None = None
        self._reading = asyncio.Lock()

    # ── the flow ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def authorization_url(self, state: str, nonce: str, verifier: str) -> str:
        """The address to which the browser goes to sign in. Raises ProviderUnavailable."""
        endpoint = await self._endpoint("authorization_endpoint")
        query = {
            "response_type": "code",
            "client_id": self._client.client_id,
            "redirect_uri": self._client.redirect_uri,
            "scope": self._client.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge(verifier),
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    async def exchange(self, code: str, verifier: str) -> Tokens:
        """The tokens for a code. Raises SignInRefused when the provider does not take the code, and ProviderUnavailable."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._client.redirect_uri,
            "code_verifier": verifier,
        }
        headers: dict[str, str] = {}
        self._authenticate(await self._read_metadata(), form, headers)
        endpoint = await self._endpoint("token_endpoint")
        status, answer = await self._call("POST", endpoint, headers=headers, data=form)
        if status in {400, 401}:  # RFC 6749: `error` says why; 401 is about this server's own secret
            error = answer.get("error")
            if error in {"invalid_client", "unauthorized_client"}:
                raise ProviderUnavailable(
                    self._client.issuer, "it refuses the client id or the client secret of this server"
                )
            raise SignInRefused("code", "the identity provider does not accept the code of this sign-in; sign in again")
        id_token, access_token = answer.get("id_token"), answer.get("access_token")
        if status != 200 or not isinstance(id_token, str):
            raise ProviderUnavailable(self._client.issuer, f"it gave no ID token (HTTP {status})")
        return Tokens(id_token, access_token if isinstance(access_token, str) else "")

    async def user_info(self, tokens: Tokens, subject: str) -> dict[str, Any]:
        """More claims of the person, from the provider's own endpoint; none where it has no such endpoint. Raises SignInRefused when they are
        of another person, and ProviderUnavailable."""
        if not (await self._read_metadata()).get("userinfo_endpoint") or not tokens.access_token:
            return {}
        endpoint = await self._endpoint("userinfo_endpoint")
        status, answer = await self._call("GET", endpoint, headers={"Authorization": f"Bearer {tokens.access_token}"})
        if status != 200:
            raise ProviderUnavailable(self._client.issuer, f"it gave no claims of the person (HTTP {status})")
        if answer.get("sub") != subject:
            raise _bad_token("the claims of the person are of another subject")
        return answer

    def _authenticate(self, metadata: Mapping[str, Any], form: dict[str, str], headers: dict[str, str]) -> None:
        """Add the client id and the secret to a request, in a way that the provider supports."""
        id_, secret = self._client.client_id, self._client.client_secret
        methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        if secret and "client_secret_basic" in methods:
            pair = f"{quote_plus(id_)}:{quote_plus(secret)}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        else:
            form["client_id"] = id_
            if secret:
                form["client_secret"] = secret

    # ── the ID token ─────────────────────────────────────────────────────────────────────────────────────────────

    async def verify(self, token: str, nonce: str) -> dict[str, Any]:
        """The claims of an ID token that is for this server and this sign-in. Raises SignInRefused, and ProviderUnavailable."""
        if len(token) > MAX_TOKEN_BYTES:
            raise _bad_token("it is too long")
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in ALGORITHMS:
                raise _bad_token(f"its algorithm {algorithm!r:.20} is not allowed")
            key = await self._key(header.get("kid"), algorithm)
            claims = jwt.decode(token, key, algorithms=[algorithm], options=_SIGNATURE_ONLY)
        except jwt.PyJWTError as error:
            raise _bad_token(str(error)) from None
        self._check(claims, nonce)
        return claims

    def _check(self, claims: Mapping[str, Any], nonce: str) -> None:
        """Section 3.1.3.7 of OpenID Connect Core. Raises SignInRefused."""
        client_id, now = self._client.client_id, self._clock.now()
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if claims.get("iss") != self._client.issuer:
            raise _bad_token("another issuer made it")
        if client_id not in audiences:
            raise _bad_token("it is for another application")
        if ("azp" in claims or len(audiences) > 1) and claims.get("azp") != client_id:
            raise _bad_token("it was made for another application")
        if not _number(claims.get("exp")) or not now < claims["exp"] + LEEWAY_S:  # NaN is no time
            raise _bad_token("it has expired")
        if not _number(claims.get("iat")) or not claims["iat"] <= now + LEEWAY_S:
            raise _bad_token("it was made in the future")
        if "nbf" in claims and (not _number(claims["nbf"]) or not claims["nbf"] <= now + LEEWAY_S):
            raise _bad_token("it is not valid yet")
        given = claims.get("nonce")
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), nonce.encode()):
            raise _bad_token("it belongs to another sign-in (its nonce is wrong)")
        if not isinstance(claims.get("sub"), str) or not claims["sub"]:
            raise _bad_token("it names no subject")

    async def _key(self, key_id: Any, algorithm: str) -> jwt.PyJWK:
        """The provider's key with this id, for this algorithm; without an id, its only one. Reads the keys again when there is none."""
        keys = await self._read_keys(METADATA_TTL_S)
        jwk = _choose(keys, key_id)
        if jwk is None:
            jwk = _choose(await self._read_keys(KEYS_INTERVAL_S), key_id)
        if jwk is None:
            raise _bad_token("the provider has no key with the id that it names")
        if jwk.get("alg", algorithm) != algorithm:
            raise _bad_token("its algorithm is not the one of its key")
        key = jwt.PyJWK(dict(jwk), algorithm)
        if getattr(key.key, "key_size", MIN_RSA_BITS) < MIN_RSA_BITS and algorithm[0] in "RP":
            raise _bad_token(f"its key has fewer than {MIN_RSA_BITS} bits")
        return key

    # ── metadata and keys ────────────────────────────────────────────────────────────────────────────────────────

    async def _read_metadata(self) -> dict[str, Any]:
        async with self._reading:
            now = self._clock.monotonic()
            if self._metadata is not None and now < self._metadata[0] + METADATA_TTL_S:
                return self._metadata[1]
            if self._failed is not None and now < self._failed[0] + RETRY_S:
                raise self._failed[1]
            try:
                metadata = await self._discover()
            except ProviderUnavailable as error:
                self._failed = self._clock.monotonic(), error
                raise
            self._metadata = now, metadata
            return metadata

    async def _discover(self) -> dict[str, Any]:
        issuer = self._client.issuer
        metadata = await self._get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if metadata.get("issuer") != issuer:
            raise ProviderUnavailable(
                issuer, f"it calls itself {metadata.get('issuer')!r:.200}; ONWARD_OIDC_ISSUER must be that name"
            )
        return metadata

    async def _endpoint(self, name: str) -> str:
        url = (await self._read_metadata()).get(name)
        if not isinstance(url, str) or not is_safe_url(url):
            raise ProviderUnavailable(self._client.issuer, f"its {name} is missing, or is not an https address")
        return url

    async def _read_keys(self, max_age_s: float) -> Sequence[Mapping[str, Any]]:
        endpoint = await self._endpoint("jwks_uri")
        async with self._reading:
            now = self._clock.monotonic()
            if self._keys is None or now >= self._keys.read_at + max_age_s:
                keys = (await self._get(endpoint)).get("keys")
                usable = [key for key in keys if isinstance(key, dict)] if isinstance(keys, list) else []
                self._keys = _Keys(now, usable[:MAX_KEYS])
            return self._keys.by_id

    async def _get(self, url: str) -> dict[str, Any]:
        status, answer = await self._call("GET", url)
        if status != 200:
            raise ProviderUnavailable(self._client.issuer, f"{urlsplit(url).path} answered with HTTP {status}")
        return answer

    async def _call(self, method: str, url: str, **options: Any) -> tuple[int, dict[str, Any]]:
        """The status and the JSON object of an answer."""
        options["headers"] = {"Accept": "application/json", "Accept-Encoding": "identity", **options.get("headers", {})}
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                tls = await certificates.trusted()
                async with (
                    httpx2.AsyncClient(
                        follow_redirects=False, timeout=CALL_TIMEOUT_S, verify=tls, transport=self._transport
                    ) as client,
                    client.stream(method, url, **options) as response,
                ):
                    return response.status_code, _parse(await _read(response))
        except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError) as error:
            why = f"no answer within {CALL_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else str(error)[:300]
            raise ProviderUnavailable(self._client.issuer, why or type(error).__name__) from error


_SIGNATURE_ONLY: Final[Any] = {
    "verify_signature": True,
    **dict.fromkeys(
        ("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss", "verify_sub", "verify_jti"), False
    ),
}
"""PyJWT checks the signature, and `_check` the claims."""


def challenge(verifier: str) -> str:
    """The challenge of a PKCE verifier (S256)."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def is_safe_url(url: str) -> bool:
    """Whether an address is https, or plain HTTP to this machine."""
    parts = urlsplit(url)
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in {"localhost", "127.0.0.1", "::1"})
    )


def _choose(keys: Sequence[Mapping[str, Any]], key_id: Any) -> Mapping[str, Any] | None:
    signing = [key for key in keys if key.get("use", "sig") == "sig"]
    if key_id is not None:
        signing = [key for key in signing if key.get("kid") == key_id]
    return signing[0] if len(signing) == 1 else None


def _bad_token(why: str) -> SignInRefused:
    return SignInRefused("token", f"the ID token of this sign-in is not valid: {why[:200]}; sign in again")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


async def _read(response: httpx2.Response) -> bytes:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ValueError("its answer is compressed, which was not asked for")
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            raise ValueError(f"its answer has more than {MAX_ANSWER_BYTES:,} bytes")
    return bytes(data)


def _parse(data: bytes) -> dict[str, Any]:
    value = json.loads(data) if data else {}
    if not isinstance(value, dict):
        raise ValueError("its answer is not a JSON object")  # noqa: TRY004 -- caught with the errors of the parser
    return value
