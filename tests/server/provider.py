"""A provider of our own for answers that a correct provider never gives: tokens with any claims and any signature. It answers
over a transport of httpx2. `rig/oidc.py` starts a real provider."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import httpx2
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from onward.server.access.oidc import challenge

ISSUER, CLIENT = "https://id.example.com", "onward"
RSA_KEYS = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]
EC_KEY, ED_KEY = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()


def jwk(key: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    kind = {"RSA": RSAAlgorithm, "EC": ECAlgorithm}.get(type(key).__name__[:2].replace("RS", "RSA"), OKPAlgorithm)
    public: dict[str, Any] = json.loads(kind.to_jwk(key.public_key()))
    return {**public, "use": "sig", **({} if kid is None else {"kid": kid}), **more}


class FakeProvider:
    """Its attributes determine its answers."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.keys = [jwk(RSA_KEYS[0], "k1", alg="RS256")]
        self.metadata: dict[str, Any] = {
            "issuer": ISSUER,
            **{f"{name}_endpoint": f"{ISSUER}/{name}" for name in ("authorization", "token", "userinfo")},
            "jwks_uri": f"{ISSUER}/jwks",
        }
        self.requests: list[httpx2.Request] = []
        self.codes: dict[str, tuple[str, dict[str, Any]]] = {}
        """The challenge and the claims of each code."""
        self.more: dict[str, Any] = {"sub": "a-1"}
        """The claims of the endpoint for claims."""
        self.answers: dict[str, httpx2.Response] = {}
        """Other answers by path."""

    @property
    def transport(self) -> httpx2.MockTransport:
        return httpx2.MockTransport(self._answer)

    def requests_to(self, path: str) -> int:
        return sum(request.url.path == path for request in self.requests)

    def claims(self, of: str, /, **over: Any) -> dict[str, Any]:
        now = int(self.now())
        made = {"iss": ISSUER, "aud": CLIENT, "sub": "a-1", "nonce": of, "iat": now, "exp": now + 300, **over}
        return {name: value for name, value in made.items() if value is not None}

    def token(self, claims: dict[str, Any], key: Any = RSA_KEYS[0], alg: str = "RS256", kid: str | None = "k1") -> str:
        return jwt.encode(claims, key, alg, headers={} if kid is None else {"kid": kid})

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        path = request.url.path
        if path in self.answers:
            return self.answers[path]
        if path == "/.well-known/openid-configuration":
            return httpx2.Response(200, json=self.metadata)
        if path == "/jwks":
            return httpx2.Response(200, json={"keys": self.keys})
        if path == "/userinfo":
            return httpx2.Response(200, json=self.more)
        form = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
        wanted, claims = self.codes.pop(form["code"], ("", {}))
        if not wanted or challenge(form["code_verifier"]) != wanted:
            return httpx2.Response(400, json={"error": "invalid_grant"})
        return httpx2.Response(200, json={"id_token": self.token(claims), "access_token": "at", "token_type": "Bearer"})
