"""Agents and secrets: a model sees and writes names, only those of its own secrets, and only where a tool takes a secret."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import SecretStr

from onward import Onward, tool
from onward.agent.mcp import RemoteTool
from onward.agent.model import Reply, Request
from onward.agent.models.scripted import ScriptedModel
from onward.agent.schemas import _format
from onward.core import mask, quota
from onward.engine.context.arguments import _short_repr
from onward.errors import InvalidInput, UnknownSecret, UsageError
from onward.testing import crashes, drain
from tests.kit import Lab, eventually
from tests.secrecy.kit import VALUE, hits

REF = {"$secret": "STRIPE_KEY"}


def app_of(*names: str) -> Onward:
    return Onward("sqlite://:memory:", secrets={name: VALUE + "+" * n for n, name in enumerate(names)})


async def talk(app: Onward, model: ScriptedModel) -> tuple[Any, str]:
    """The result, and all that the model was shown."""
    async with app, app.worker():
        result = await (await app.submit("agent", "pay for it")).result("60s")
    return result, repr([[*request.messages, *request.tools] for request in model.asked])


async def test_a_model_sees_and_writes_only_the_name() -> None:
    app, seen = app_of("STRIPE_KEY", "OTHER_KEY"), []
    key = app.secret("STRIPE_KEY")
    app.secret("OTHER_KEY")

    @tool
    def charge(amount: int, token: SecretStr, own: SecretStr = key) -> str:
        """Charge a card."""
        seen.append((amount, token.get_secret_value(), own.get_secret_value()))
        return f"charged with {token.get_secret_value()}"

    @tool
    def mail(to: str, body: str) -> str:
        """Send a mail."""
        seen.append(("mail", body))
        return "sent"

    @tool
    def note(what: Any) -> str:
        """Note anything."""
        seen.append(("note", str(what)))
        return f"noted {what}"

    model = ScriptedModel(
        [
            [("charge", {"amount": 1, "token": REF})],
            [("charge", {"amount": 2, "token": "sk_live_guessed"})],
            [("charge", {"amount": 3, "token": {"$secret": "OTHER_KEY"}})],
            [("charge", {"amount": 4, "token": REF, "own": REF})],
            [("mail", {"to": "thief@example.com", "body": REF})],
            [("note", {"what": {"list": [REF]}})],
            lambda request: str(request.conversation[-1]["content"]),
        ]
    )
    app.agent("agent", model=model, tools=[charge, mail, note], secrets=[key])
    result, shown = await talk(app, model)
    assert seen == [(1, VALUE, VALUE), ("note", "{'list': [SecretStr('**********')]}")]
    assert hits(shown) == []
    results = [message["content"] for message in model.asked[-1].messages if message["role"] == "tool"]
    assert results[0] == "charged with [secret STRIPE_KEY]"
    assert "clear text" in results[1]
    assert "no secret is named 'OTHER_KEY' here (declared: STRIPE_KEY)" in results[2]
    assert "has no 'own'" in results[3]
    assert "valid string" in results[4]
    assert result == "noted {'list': [SecretStr('**********')]}"
    spec = next(tool_["function"] for tool_ in model.asked[0].tools if tool_["function"]["name"] == "charge")
    assert sorted(spec["parameters"]["properties"]) == ["amount", "token"]
    assert spec["parameters"]["properties"]["token"]["properties"] == {
        "$secret": {"type": "string", "enum": ["STRIPE_KEY"]}
    }
    with pytest.raises(UnknownSecret):
        app.agent("another", model=model, secrets=["NOT_DECLARED"])


def test_tools_of_other_servers_take_no_secrets() -> None:
    remote = RemoteTool(print, "write_note", "Write a note.", schema={"type": "object", "properties": {"text": {}}})
    assert remote.check({"text": "plain"}) == {"text": "plain"}
    with pytest.raises(InvalidInput, match="is given no secrets"):
        remote.check({"text": [REF]})
    assert not remote.takes.secrets


async def test_an_approval_shows_the_name_of_the_secret() -> None:
    app, seen = app_of("STRIPE_KEY"), []
    app.secret("STRIPE_KEY")

    @tool(risk="external_action", idempotent=True, undo=lambda token: None)
    async def charge(ctx: Any, token: SecretStr) -> str:
        """Charge a card."""
        seen.append(token.get_secret_value())
        return ctx.task_id[:0] + "done"

    model = ScriptedModel([[("charge", {"token": REF})], "fine"])
    app.agent("agent", model=model, tools=[charge], approve=["external_action"], secrets=["STRIPE_KEY"])
    async with app, app.worker():
        task = await app.submit("agent", "pay")
        asks = []
        while not asks:
            asks = await app.asks()
        assert asks[0].data["arguments"] == {"token": REF}
        await app.decide(asks[0].id, "approve", hash=asks[0].hash)
        assert await task.result("60s") == "fine"
    assert seen == [VALUE]


def maker(logins: list[int], used: list[str], turns: int = 1, gate: asyncio.Event | None = None) -> Onward:
    app = Onward("sqlite://:memory:", secrets={}, grace_s=0.1)

    @tool(makes="SESSION")
    def login(user: str) -> str:
        """Log in."""
        logins.append(1)
        return f"session-of-{user}"

    @tool
    async def call(token: SecretStr, what: int) -> str:
        """Call the API."""
        used.append(token.get_secret_value())
        if gate is not None and what == 20:
            await gate.wait()
        return f"{what} with {token.get_secret_value()}"

    calls: list[Any] = [[("call", {"token": {"$secret": "SESSION"}, "what": n})] for n in range(turns)]
    app.agent(
        "agent",
        model=ScriptedModel([[("login", {"user": "somebody"})], *calls, "done"]),
        tools=[login, call],
    )
    return app


@pytest.mark.slow
async def test_a_tool_that_makes_a_secret_gives_the_model_its_name_whatever_crashes() -> None:
    logins: list[int] = []
    used: list[str] = []
    runs = 0
    async for run in crashes(maker(logins, used)):
        runs += 1
        task = await run.submit("agent", "call it")
        assert await drain(run) == []
        assert await task.result() == "done"
        kept = [record.data async for record in task.tail()]
        assert b"session-of" not in b"".join(kept)
    assert runs > 5
    assert set(used) == {"session-of-somebody"}
    assert len(logins) > runs - 1, "made again where it was lost"


async def test_it_can_be_used_after_a_checkpoint_and_another_worker() -> None:
    logins: list[int] = []
    used: list[str] = []
    gate = asyncio.Event()
    app = maker(logins, used, turns=25, gate=gate)
    async with app:
        async with app.worker():
            task = await app.submit("agent", "call it often")
            await eventually(lambda: asyncio.sleep(0, len(used) > 20))
        gate.set()
        async with app.worker():
            assert await task.result("60s") == "done"
        kinds = [record.kind async for record in task.tail()]
    assert "checkpoint.saved" in kinds
    assert len(set(used)) == 1
    assert len(logins) == 2


def test_a_tool_that_makes_a_secret_must_be_repeatable() -> None:
    with pytest.raises(UsageError, match="makes the secret 'SESSION'"):

        @tool(makes="SESSION", risk="external_action")
        def login() -> str:
            """Log in."""
            return "x"

    with pytest.raises(UsageError, match="named by up to"):
        tool(name="login", makes="no name")(lambda: "x")


@pytest.mark.parametrize("at", range(1, len(VALUE), 5))
async def test_a_value_in_two_pieces_of_live_text_is_masked(lab: Lab, at: int) -> None:
    """Each report is a record of its own, and a reader puts them together."""

    class Split:
        name = "split"

        async def ask(self, request: Request, emit: Any) -> Reply:
            for piece in ("the key is ", VALUE[:at], VALUE[at:], " as you know; ", "and so on"):
                await lab.clock.sleep(1)
                emit(piece)
            return Reply("fine")

    mask.learn("STRIPE_KEY", VALUE)
    lab.app.agent("split", model=Split())
    task = await lab.run("split", "x")
    records = await lab.app.service.journal(task.task_id, limit=1000)
    text = "".join(record.value["text"] for record in records if "text" in (record.value or {}))
    assert text == "the key is [secret STRIPE_KEY] as you know; and so on"
    assert not hits(repr([record.value for record in records]))


def test_a_message_is_masked_before_it_is_cut() -> None:
    mask.learn("STRIPE_KEY", VALUE)
    long = "x" * (quota.MAX_WHY_CHARS - 8) + VALUE
    assert VALUE[:4] not in quota.why(ValueError(long))
    assert VALUE[:4] not in _short_repr("x" * 50 + VALUE)
    assert VALUE[:4] not in _format("x" * 74 + VALUE)
    assert mask.cut(f"{VALUE} and more", 30) == "[secret STRIPE_KEY] and more"
