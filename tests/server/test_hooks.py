"""Signed requests from outside: a signed request wakes or submits a task, once; other requests do nothing."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from onward import Onward
from onward.core.hook import SCHEMES, hook
from onward.errors import BadSetting, Unauthorized
from tests.server.conftest import Ends

Client = httpx2.AsyncClient
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PLAIN = "a secret of sixteen and more"


def signed(scheme: str, body: bytes, *, secret: str = "", at: float | None = None, sent: str = "m1") -> dict[str, str]:
    """Headers as the sender makes them."""
    now = int(time.time() if at is None else at)
    key = (secret or PLAIN).encode()
    if scheme == "standard":
        import datetime

        when = datetime.datetime.fromtimestamp(now, datetime.UTC)
        signature = Webhook(secret or SECRET).sign(sent, when, body.decode())
        return {"webhook-id": sent, "webhook-timestamp": str(now), "webhook-signature": signature}
    if scheme == "github":
        mac = hmac.new(key, body, hashlib.sha256).hexdigest()
        return {"X-Hub-Signature-256": f"sha256={mac}", "X-GitHub-Delivery": sent, "X-GitHub-Event": "push"}
    mac = hmac.new(key, f"{now}.".encode() + body, hashlib.sha256).hexdigest()
    return {"Stripe-Signature": f"t={now},v0=abc,v1={mac}"}


def declare(app: Onward, scheme: str) -> list[str]:
    seen: list[str] = []

    @app.task
    async def deploy(ctx: Any, what: str) -> str:
        paid = await ctx.signal("paid")
        return f"{what} for {paid}"

    @app.hook(
        "outside",
        secret=[PLAIN * 2 if scheme != "standard" else SECRET + "QUFB", SECRET if scheme == "standard" else PLAIN],
        scheme=scheme,
    )
    async def receive(event: Any) -> None:
        seen.append(event.id)
        if "task_id" in event.data:
            await app.signal(event.data["task_id"], "paid", event.data["sum"], id=event.id)
        else:
            await app.submit(deploy, event.data["what"], key=event.id)

    return seen


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_signed_request_submits_and_another_wakes_each_once(
    app: Onward, client: Client, ends: Ends, scheme: str
) -> None:
    declare(app, scheme)
    order = json.dumps({"what": "web", "id": "e1"}).encode()
    for _ in range(3):
        response = await client.post("/api/hooks/outside", content=order, headers=signed(scheme, order, sent="e1"))
        assert response.status_code == 200, response.text
    (task,) = (await client.get("/api/tasks")).json()["tasks"]
    paid = json.dumps({"task_id": task["task_id"], "sum": 5, "id": "e2"}).encode()
    for _ in range(2):  # before a task waits for it
        assert (
            await client.post("/api/hooks/outside", content=paid, headers=signed(scheme, paid, sent="e2"))
        ).status_code == 200
    async with app.worker():
        assert (await ends(task["task_id"]))["result"] == "web for 5"
    paid = json.dumps({"task_id": task["task_id"], "sum": 5, "id": "e3"}).encode()
    late = await client.post("/api/hooks/outside", content=paid, headers=signed(scheme, paid, sent="e3"))
    assert late.status_code == 409


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_an_unsigned_request_does_nothing(app: Onward, client: Client, scheme: str) -> None:
    seen = declare(app, scheme)
    body = b'{"what": "web"}'
    right = signed(scheme, body)
    wrong: list[tuple[bytes, dict[str, str]]] = [
        (body, {}),
        (body + b" ", right),
        (b"not JSON", right),
        (
            body,
            signed(scheme, body, secret="whsec_" + "QUFB" * 8 if scheme == "standard" else "another secret of sixteen"),
        ),
        (body, {name: value[:-2] + "AA" for name, value in right.items()}),
        (body, dict.fromkeys(right, "ÿ")),
    ]
    if scheme != "github":  # which signs no time
        wrong += [(body, signed(scheme, body, at=time.time() + shift)) for shift in (-900, 900)]
    for content, headers in wrong:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        response = await client.post("/api/hooks/outside", content=content, headers=raw)
        assert (response.status_code, response.json()["code"]) == (401, "unauthorized"), (content, headers)
    assert (await client.post("/api/hooks/elsewhere", content=body, headers=right)).status_code == 404
    broken = await client.post("/api/hooks/outside", content=b"{", headers=signed(scheme, b"{"))
    assert (broken.status_code, broken.json()["code"]) == (400, "bad_json")
    assert seen == []
    assert (await client.get("/api/tasks")).json()["tasks"] == []


async def test_a_hook_that_fails_is_called_again(app: Onward, client: Client) -> None:
    tries: list[str] = []

    @app.hook("outside", secret=PLAIN, scheme="github", timeout=5)
    def receive(event: Any) -> None:
        tries.append(event.type)
        if len(tries) == 1:
            raise ValueError("not now")

    headers = signed("github", b"{}")
    answers = [(await client.post("/api/hooks/outside", content=b"{}", headers=headers)).status_code for _ in range(2)]
    assert (answers, tries) == ([500, 200], ["push", "push"])


@given(
    st.binary(max_size=200),
    st.dictionaries(
        st.sampled_from(
            ["webhook-id", "webhook-timestamp", "webhook-signature", "x-hub-signature-256", "stripe-signature"]
        ),
        st.text(max_size=80),
    ),
)
def test_no_header_breaks_the_check(body: bytes, headers: dict[str, str]) -> None:
    for scheme in SCHEMES:
        made = hook("x", print, SECRET, scheme, 1)
        with pytest.raises(Unauthorized):
            made.event(headers, body, None, 0.0)


def test_a_malformed_secret_is_refused() -> None:
    for secret, scheme in (
        ("short", "github"),
        ([], "github"),
        ("whsec_not base 64 at all", "standard"),
        (SECRET, "other"),
    ):
        with pytest.raises(BadSetting) as error:
            hook("x", print, secret, scheme, 1)
        assert "not base 64" not in str(error.value)


UNSIGNED = ("webhook-id", "idempotency-key", "ce-id", "x-github-delivery", "x-request-id")
TYPES = ("ce-type", "x-github-event", "webhook-type", "x-event-type")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("body", [b'{"id": "evt_1", "type": "paid"}', b'{"sum": 5, "type": "paid"}'])
def test_an_unsigned_header_does_not_name_a_request(scheme: str, body: bytes) -> None:
    """An attacker who has a copy of a request cannot send it again under another name."""
    made = hook("x", print, SECRET if scheme == "standard" else PLAIN, scheme, 1)
    headers = {name.lower(): value for name, value in signed(scheme, body, at=0).items()}
    plain = made.event(headers, body, json.loads(body), 0.0)
    assert plain.type == "paid"
    for name in (*UNSIGNED, *TYPES):
        if scheme == "standard" and name == "webhook-id":  # signed: another one is refused
            continue
        event = made.event(headers | {name: "another"}, body, json.loads(body), 0.0)
        assert (event.id, event.type) == (plain.id, "paid"), name


@pytest.mark.parametrize("odd", ["", "a\0b", "x" * 513, "a\nb", 7, None])
def test_an_id_that_is_no_valid_key_is_refused(odd: Any) -> None:
    body = json.dumps({"id": odd}).encode()
    made = hook("x", print, PLAIN, "stripe", 1)
    headers = {name.lower(): value for name, value in signed("stripe", body, at=0).items()}
    assert made.event(headers, body, json.loads(body), 0.0).id == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_request_sent_again_under_another_name_submits_nothing(
    app: Onward, client: Client, scheme: str
) -> None:
    declare(app, scheme)
    order = b'{"what": "web"}'
    headers = signed(scheme, order, sent="m1")
    for number in range(3):
        more = {"X-GitHub-Delivery": f"d{number}", "Idempotency-Key": f"k{number}", "CE-ID": f"c{number}"}
        response = await client.post("/api/hooks/outside", content=order, headers=headers | more)
        assert response.status_code == 200, response.text
    if scheme != "github":  # a time that is signed: beyond the tolerance the same request is refused
        late = await client.post(
            "/api/hooks/outside", content=order, headers=signed(scheme, order, at=time.time() - 900, sent="m1") | more
        )
        assert late.status_code == 401
    again = await client.post("/api/hooks/outside", content=order, headers=signed(scheme, order, sent="m1") | more)
    assert again.status_code == 200
    assert len((await client.get("/api/tasks")).json()["tasks"]) == 1
