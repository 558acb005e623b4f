"""The client of the identity provider: which ID tokens it accepts, and how little it trusts the answers of a provider."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from onward.core.identity import SignInRefused
from onward.server.access.oidc import (
    KEYS_INTERVAL_S,
    LEEWAY_S,
    MAX_ANSWER_BYTES,
    METADATA_TTL_S,
    RETRY_S,
    Client,
    Provider,
    ProviderUnavailable,
    Tokens,
    challenge,
)
from tests.kit import HandClock
from tests.server.provider import CLIENT, EC_KEY, ED_KEY, ISSUER, RSA_KEYS, FakeProvider, jwk

US = Client(ISSUER, CLIENT, "", "openid", "https://onward.example.com/api/sign-in/callback")


@pytest.fixture
def fake(clock: HandClock) -> FakeProvider:
    return FakeProvider(clock.now)


@pytest.fixture
def provider(fake: FakeProvider, clock: HandClock) -> Provider:
    return Provider(US, clock, transport=fake.transport)


async def why_not(provider: Provider, token: str, nonce: str = "n") -> str:
    with pytest.raises(SignInRefused) as refusal:
        await provider.verify(token, nonce)
    assert refusal.value.cause == "token"
    return str(refusal.value)


async def test_a_valid_token(provider: Provider, fake: FakeProvider) -> None:
    assert (await provider.verify(fake.token(fake.claims("n")), "n"))["sub"] == "a-1"
    several = fake.claims("n", aud=["other", CLIENT], azp=CLIENT)
    assert (await provider.verify(fake.token(several), "n"))["azp"] == CLIENT
    late = fake.claims("n", exp=fake.now() - LEEWAY_S + 1, iat=fake.now() + LEEWAY_S)
    assert await provider.verify(fake.token(late), "n"), "clocks differ"


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"iss": ISSUER + "/"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "other"}, "for another application"),
        ({"aud": ["other"]}, "for another application"),
        ({"aud": None}, "for another application"),
        ({"aud": CLIENT + "-2"}, "for another application"),
        ({"aud": [CLIENT, "other"]}, "made for another application"),
        ({"azp": "other"}, "made for another application"),
        ({"aud": [CLIENT, "other"], "azp": "other"}, "made for another application"),
        ({"nonce": "m"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"nonce": 5}, "nonce"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "expired"),
        ({"exp": "9999999999"}, "expired"),
        ({"exp": True}, "expired"),
        ({"exp": float("nan")}, "expired"),
        ({"iat": float("nan")}, "future"),
        ({"iat": None}, "future"),
        ({"iat": 9_999_999_999}, "future"),
        ({"nbf": 9_999_999_999}, "not valid yet"),
        ({"nbf": "now"}, "not valid yet"),
        ({"sub": None}, "no subject"),
        ({"sub": ""}, "no subject"),
    ],
)
async def test_a_token_with_a_wrong_claim(
    provider: Provider, fake: FakeProvider, over: dict[str, Any], reason: str
) -> None:
    assert reason in await why_not(provider, fake.token(fake.claims("n", **over)))


async def test_the_time_at_which_it_expires(provider: Provider, fake: FakeProvider) -> None:
    just = fake.claims("n", exp=fake.now() - LEEWAY_S)
    assert "expired" in await why_not(provider, fake.token(just))


def unsigned(claims: dict[str, Any], **header: Any) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'typ': 'JWT', **header})}.{part(claims)}."


async def test_a_token_without_a_signature_of_the_provider(provider: Provider, fake: FakeProvider) -> None:
    claims = fake.claims("n")
    for alg in ("none", "None", "NONE", "", None, 5, "HS256", "XX256"):
        assert "valid" in await why_not(provider, unsigned(claims, alg=alg, kid="k1"))
    assert "valid" in await why_not(provider, unsigned(claims, kid="k1"))
    public = RSA_KEYS[0].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for secret in (public, json.dumps(fake.keys[0]).encode(), b"", b"onward"):
        signer = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
        head = unsigned(claims, alg="HS256", kid="k1")[:-1]
        forged = f"{head}.{base64.urlsafe_b64encode(signer.sign(head.encode(), secret)).rstrip(b'=').decode()}"
        assert "algorithm 'HS256' is not allowed" in await why_not(provider, forged)
    assert "valid" in await why_not(provider, fake.token(claims, RSA_KEYS[1])), "another key under the same id"
    good = fake.token(claims)
    head, _, signature = good.split(".")
    other = fake.token(fake.claims("n", sub="somebody else")).split(".")[1]
    assert "valid" in await why_not(provider, f"{head}.{other}.{signature}")
    for broken in ("", "a.b.c", good[:-4], good + "x", "." * 9, "x" * 70_000, "é.é.é"):
        assert await why_not(provider, broken)


async def test_the_key_determines_the_algorithm(provider: Provider, fake: FakeProvider) -> None:
    fake.keys = [jwk(EC_KEY, "e"), jwk(ED_KEY, "d"), jwk(RSA_KEYS[0], "r"), jwk(RSA_KEYS[1], "p", alg="PS256")]
    claims = fake.claims("n")
    for key, alg, kid in (
        (EC_KEY, "ES256", "e"),
        (ED_KEY, "EdDSA", "d"),
        (RSA_KEYS[0], "RS512", "r"),
        (RSA_KEYS[1], "PS256", "p"),
    ):
        assert await provider.verify(fake.token(claims, key, alg, kid), "n")
    assert "algorithm" in await why_not(provider, fake.token(claims, RSA_KEYS[1], "RS256", "p"))
    assert await why_not(provider, fake.token(claims, RSA_KEYS[0], "RS256", "e")), (
        "an RSA signature, and a key of a curve"
    )
    fake.keys = [jwk(RSA_KEYS[0], "k1", use="enc")]
    provider._keys = None
    assert "no key" in await why_not(provider, fake.token(claims)), "a key for encryption is refused for signatures"


async def test_a_key_that_is_too_short(provider: Provider, fake: FakeProvider) -> None:
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    fake.keys = [jwk(short, "k1")]
    with pytest.warns(jwt.warnings.InsecureKeyLengthWarning):
        token = fake.token(fake.claims("n"), short)
    assert "fewer than 2048 bits" in await why_not(provider, token)


async def test_a_token_without_a_key_id_is_accepted_if_there_is_one_key(provider: Provider, fake: FakeProvider) -> None:
    token = fake.token(fake.claims("n"), kid=None)
    assert await provider.verify(token, "n")
    fake.keys.append(jwk(RSA_KEYS[1], "k2"))
    provider._keys = None
    assert "no key" in await why_not(provider, token)


async def test_a_new_key_of_the_provider_is_read_and_a_withdrawn_one_is_dropped(
    provider: Provider, fake: FakeProvider, clock: HandClock
) -> None:
    old = fake.token(fake.claims("n"))
    assert await provider.verify(old, "n")
    fake.keys = [jwk(RSA_KEYS[1], "k2", alg="RS256")]
    new = fake.token(fake.claims("n"), RSA_KEYS[1], kid="k2")
    assert "no key" in await why_not(provider, new), "the keys were read this very moment"
    clock.jump(KEYS_INTERVAL_S)
    assert await provider.verify(new, "n")
    assert "no key" in await why_not(provider, old)
    before = fake.requests_to("/jwks")
    for n in range(100):
        await why_not(provider, fake.token(fake.claims("n"), kid=f"made up {n}"))
    assert fake.requests_to("/jwks") == before, "tokens cannot make us ask the provider"
    clock.jump(METADATA_TTL_S)
    assert await provider.verify(fake.token(fake.claims("n"), RSA_KEYS[1], kid="k2"), "n")
    assert fake.requests_to("/jwks") == before + 1


# ── the provider's answers ───────────────────────────────────────────────────────────────────────────────────────────


async def test_the_redirect_to_the_provider_has_all_parameters(provider: Provider) -> None:
    url = httpx2.URL(await provider.authorization_url("s", "n", "v" * 43))
    assert dict(url.params) == {
        "response_type": "code",
        "client_id": CLIENT,
        "redirect_uri": US.redirect_uri,
        "scope": "openid",
        "state": "s",
        "nonce": "n",
        "code_challenge": challenge("v" * 43),
        "code_challenge_method": "S256",
    }
    assert challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk") == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


@pytest.mark.parametrize(
    "methods", [None, ["client_secret_basic"], ["client_secret_post"], ["client_secret_post", "x"]]
)
async def test_the_secret_is_sent_as_the_provider_takes_it(
    fake: FakeProvider, clock: HandClock, methods: list[str] | None
) -> None:
    if methods:
        fake.metadata["token_endpoint_auth_methods_supported"] = methods
    provider = Provider(US._replace(client_secret="s:e cret"), clock, transport=fake.transport)
    fake.codes["c"] = challenge("v"), fake.claims("n")
    assert (await provider.exchange("c", "v")).access_token == "at"
    request = fake.requests[-1]
    if methods and methods[0] == "client_secret_post":
        assert b"client_secret=s%3Ae+cret" in request.content
        assert "authorization" not in request.headers
    else:
        assert request.headers["authorization"] == f"Basic {base64.b64encode(b'onward:s%3Ae+cret').decode()}"
        assert b"secret" not in request.content


async def test_a_public_client_sends_no_secret(provider: Provider, fake: FakeProvider) -> None:
    fake.codes["c"] = challenge("v"), fake.claims("n")
    await provider.exchange("c", "v")
    assert b"client_id=onward" in fake.requests[-1].content
    assert "authorization" not in fake.requests[-1].headers


async def test_a_wrong_code_is_refused_and_a_wrong_secret_is_the_servers_own_fault(
    provider: Provider, fake: FakeProvider
) -> None:
    with pytest.raises(SignInRefused, match="does not accept the code"):
        await provider.exchange("made up", "v")
    fake.answers["/token"] = httpx2.Response(401, json={"error": "invalid_client"})
    with pytest.raises(ProviderUnavailable, match="client secret"):
        await provider.exchange("c", "v")
    fake.answers["/token"] = httpx2.Response(200, json={"access_token": "at"})
    with pytest.raises(ProviderUnavailable, match="no ID token"):
        await provider.exchange("c", "v")


async def test_claims_of_another_person_are_refused(provider: Provider, fake: FakeProvider) -> None:
    fake.more = {"sub": "b-2", "groups": ["admin"]}
    with pytest.raises(SignInRefused, match="another subject"):
        await provider.user_info(Tokens("", "at"), "a-1")
    fake.more["sub"] = "a-1"
    assert (await provider.user_info(Tokens("", "at"), "a-1"))["groups"] == ["admin"]
    assert fake.requests[-1].headers["authorization"] == "Bearer at"
    del fake.metadata["userinfo_endpoint"]
    provider._metadata = None
    assert await provider.user_info(Tokens("", "at"), "a-1") == {}


METADATA = "/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        (METADATA, httpx2.Response(200, json={"issuer": "https://evil.example"}), "it calls itself"),
        (METADATA, httpx2.Response(200, json={"issuer": ISSUER}), "authorization_endpoint is missing"),
        (METADATA, httpx2.Response(302, headers={"Location": "http://169.254.169.254/"}), "HTTP 302"),
        (METADATA, httpx2.Response(500), "HTTP 500"),
        (METADATA, httpx2.Response(200, content=b"[1]"), "not a JSON object"),
        (METADATA, httpx2.Response(200, content=b"{"), "cannot be used now"),
        (METADATA, httpx2.Response(200, content=b"[" * 100_000), "cannot be used now"),
        (METADATA, httpx2.Response(200, content=b" " * (MAX_ANSWER_BYTES + 1)), "more than"),
        (
            METADATA,
            httpx2.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx2.ByteStream(gzip.compress(b"{}"))),
            "compressed",
        ),
    ],
)
async def test_a_provider_that_answers_nonsense(
    provider: Provider, fake: FakeProvider, path: str, answer: httpx2.Response, reason: str
) -> None:
    fake.answers[path] = answer
    with pytest.raises(ProviderUnavailable, match=reason):
        await provider.authorization_url("s", "n", "v")
    assert len(fake.requests) == 1, "no redirect is followed"


async def test_an_unreachable_provider_is_not_called_for_every_sign_in(
    provider: Provider, fake: FakeProvider, clock: HandClock
) -> None:
    fake.answers[METADATA] = httpx2.Response(500)
    for _ in range(20):
        with pytest.raises(ProviderUnavailable):
            await provider.authorization_url("s", "n", "v")
    assert fake.requests_to(METADATA) == 1
    del fake.answers[METADATA]
    clock.jump(RETRY_S)
    assert await provider.authorization_url("s", "n", "v")


async def test_an_endpoint_without_tls_is_not_called(provider: Provider, fake: FakeProvider) -> None:
    fake.metadata["token_endpoint"] = "http://id.example.com/token"
    with pytest.raises(ProviderUnavailable, match="not an https address"):
        await provider.exchange("c", "v")
