"""A handler and an agent spread a secret in every way that we know; then the test searches every byte of the database, of the
logs and of all responses. Without one of the masks the search finds the secret, so the search works."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import logging
import types
import urllib.parse
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from onward import Onward, Retry, telemetry, tool
from onward.agent import calls
from onward.agent.models.scripted import ScriptedModel
from onward.core import mask, secret_forms, wire
from onward.core.state import AgentState, Fact, StatePatch
from onward.engine.context import secrets
from onward.engine.shift import resources, scope
from onward.errors import StepFailed
from onward.logging import JsonLines
from onward.service.secret_scan import find
from tests.kit import eventually, not_memory, only_file
from tests.secrecy.kit import VALUE, database_bytes, forms, hits
from tests.server.conftest import serving
from tests.sinks.receiver import Receiver
from tests.telemetry.conftest import Spans, spans

REF = {"$secret": "STRIPE_KEY"}
log = logging.getLogger("shop.payments")
__all__ = ["spans"]


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    """All log records, ours and those of user code, with tracebacks and all attributes."""

    class Everything(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return f"{super().format(record)} {vars(record)!r}"

    heard = io.StringIO()
    handlers = [logging.StreamHandler(heard), logging.StreamHandler(heard)]
    for handler, form in zip(handlers, (Everything("%(levelname)s %(name)s %(message)s"), JsonLines()), strict=True):
        handler.setFormatter(form)
        logging.getLogger().addHandler(handler)
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.DEBUG)
    logging.getLogger("onward").setLevel(logging.DEBUG)
    yield heard
    for handler in handlers:
        root.removeHandler(handler)
    root.setLevel(level)
    logging.getLogger("onward").setLevel(logging.NOTSET)


class Refused(Exception):
    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__("refused", {"Authorization": f"Bearer {key}"})


@dataclasses.dataclass
class Receipt:
    key: str
    parts: list[Any]


def made_of(key: str) -> dict[str, Any]:
    """One value in the forms that tools write."""
    return {
        "as it is": key,
        "nested": [{"deep": [{"er": (key, [key])}]}],
        "url": f"https://api.example.com/?key={urllib.parse.quote(key, safe='')}",
        "form": urllib.parse.urlencode({"key": key}),
        "basic": f"Authorization: Basic {base64.b64encode(f'me:{key}'.encode()).decode()}",
        "text of json": json.dumps({"key": key}),
        "text of text of json": json.dumps(json.dumps({"key": key})),
        "hex": key.encode().hex(),
        "repr": f"{key!r}",
        f"as a key {key}": 1,
        "receipt": Receipt(key, [key]),
        "long": "x" * 5_000 + key + "y" * 5_000,
    }


def spreading(app: Onward) -> None:
    """Handlers and an agent that cannot keep anything to themselves."""
    key = app.secret("STRIPE_KEY")

    async def tell(token: str) -> Any:
        log.warning("with %s", token)
        log.info("with extra", extra={"token": token, "headers": {"Authorization": [token]}})
        log.info("cut %.4s", token)
        log.info(f"in a sentence {token}")  # noqa: G004 -- as people do
        return made_of(token)

    def fail(token: str) -> None:
        try:
            raise Refused(token)
        except Refused as error:
            log.exception("it was refused")
            raise ValueError(f"no luck with {token}") from error

    def late(token: str) -> None:
        raise ValueError("z" * 9_986 + token)

    quick = Retry(attempts=2, first="10ms")

    @app.task(retry=quick)
    async def spread(ctx: Any, token: SecretStr, again: bool = True) -> Any:
        clear = token.get_secret_value()
        if ctx.restored is None:
            await ctx.checkpoint({"told": await before(ctx, clear), "token": token})
        try:
            async with ctx.saga():
                await ctx.step(tell, clear, undo=tell)
                raise Refused(clear)
        except Refused:
            pass
        if again:
            await (await ctx.submit("spread", {"token": token, "again": False}, labels={"who": clear}))
        answer = await ctx.ask(f"may I use {clear}?", timeout="50ms", default=clear)
        return [ctx.restored, answer, clear, token, key]

    async def before(ctx: Any, clear: str) -> Any:
        results = [await ctx.step(tell, key), await ctx.step(tell, clear, name=f"tell {clear}")]
        for bad in (fail, late):
            try:
                await ctx.step(bad, key, retry=Retry(attempts=2, first="10ms"))
            except StepFailed as failed:
                results.append(str(failed))
        ctx.progress(f"working with {clear}", 1, 2, detail={"key": clear})
        await ctx.patch(AgentState(goal=f"pay with {clear}"))
        await ctx.patch(StatePatch(append_facts=(Fact(key="k", value={"key": clear}, source=clear),)))
        ref = await ctx.artifact(f"the key is\n{clear}\n", summary=f"key {clear}")
        binary = await ctx.artifact(b"\0\1" + clear.encode("utf-16-le") + clear.encode(), type="binary")
        return [results, ref.summary, binary.artifact_id, clear, ctx.keep(f"kept {clear}")]

    @app.task(retry=quick)
    async def die(ctx: Any, token: SecretStr) -> None:
        log.error("about to die with %r", token.get_secret_value())
        raise Refused(token.get_secret_value())

    @tool
    def curl(url: str, token: SecretStr) -> Any:
        """Fetch something."""
        return made_of(token.get_secret_value()) | {"url": url}

    @tool
    def dump(token: str = key) -> str:
        """Show a lot."""
        return f"{'line ' * 20}\n" * 100 + token + "\nmore" * 500

    @tool
    async def raw(token: str = key) -> bytes:
        """Show bytes."""
        return b"\xff\xfe" + token.encode("utf-16-le") + token.encode()

    @tool(normalize=lambda output: StatePatch(append_facts=(Fact(key="f", value=output, source="curl"),)))
    def note(token: str = key) -> str:
        """Note something."""
        return f"noted {token}"

    @tool
    def breaks(token: str = key) -> None:
        """Fail."""
        raise Refused(token)

    model = ScriptedModel(
        [
            [("curl", {"url": "https://api.example.com", "token": REF}), ("dump", {}), ("raw", {}), ("note", {})],
            [("breaks", {})],
            lambda request: f"I saw {json.dumps([dict(message) for message in request.messages], ensure_ascii=False)}",
        ]
    )
    app.agent("agent", model=model, tools=[curl, dump, raw, note, breaks], secrets=[key])
    app.models = [model]  # type: ignore[attr-defined]


async def spread(url: str, monkeypatch: pytest.MonkeyPatch, fault: str = "") -> tuple[dict[str, bytes], Onward]:
    """All written or sent bytes, by place."""
    monkeypatch.setenv("STRIPE_KEY", VALUE)
    monkeypatch.setenv(telemetry.CAPTURE_CONTENT, "true")  # spans have the texts of models and tools
    app = Onward(
        url,
        poll_s=0.05,
        lease_s=5.0,
        heartbeat_s=0.5,
        webhook_secret="whsec_" + base64.b64encode(bytes(range(32))).decode(),
        webhook_allow_private="127.0.0.1/32",
    )
    spreading(app)
    plant(fault, monkeypatch)
    places: dict[str, bytes] = {}
    async with Receiver().open() as receiver, app, app.worker():
        ids = [(await app.submit(name, value, webhook=receiver.url())).id for name, value in WORK.items()]
        for task_id in ids:
            await app.service.wait(task_id, 20)
        await eventually(lambda: _quiet(app))
        tasks = [await app.get(task_id) for task_id in ids]
        assert [str(task.state) for task in tasks] == ["completed", "failed", "completed"]
        places["followers"] = b""
        for task_id in ids:
            places["followers"] += b"".join([record.data async for record in app.service.tail(task_id)])
        places["database"] = database_bytes(app)
        places["model"] = repr([request.messages for request in app.models[0].asked]).encode()  # type: ignore[attr-defined]
        async with serving(app) as address, httpx2.AsyncClient(base_url=address) as client:
            paths = [
                f"/api/tasks/{task_id}{rest}" for task_id in ids for rest in ("", "/journal", "/state", "/artifacts")
            ]
            answers = [await client.get(path) for path in paths]
            places["HTTP"] = b"".join(answer.content for answer in answers)
            assert sum(answer.status_code == 200 for answer in answers) >= 6
            for path in [f"/api/tasks/{task_id}/events" for task_id in ids] + [f"/api/progress?task_id={ids[0]}"]:
                async with client.stream("GET", path, headers={"Accept": "text/event-stream"}) as stream:
                    places["SSE"] = places.get("SSE", b"") + await stream.aread()
        await eventually(lambda: _sent(receiver, len(ids)))
        places["webhooks"] = b"".join(request.body for request in receiver.got)
        if not fault:
            scan = await find(app.store, app.service.artifacts, app.secrets)
            assert (scan.secrets, scan.leaks) == (["STRIPE_KEY"], [])
            assert scan.rows > 50
    return places, app


WORK = {"spread": {"token": REF}, "die": {"token": REF}, "agent": {"goal": "pay for it"}}


def shown(spans: Spans) -> bytes:
    """All that was exported."""
    return "".join(span.to_json() for span in spans.all).encode()


async def _sent(receiver: Receiver, number: int) -> bool:
    return len(receiver.got) >= number


async def _quiet(app: Onward) -> bool:
    tasks, _ = await app.list()
    return all(task.ended for task in tasks)


@pytest.mark.slow
@not_memory
async def test_the_secret_is_written_nowhere(
    url: str, monkeypatch: pytest.MonkeyPatch, logs: io.StringIO, spans: Spans
) -> None:
    places, _ = await spread(url, monkeypatch)
    places["logs"], places["spans"] = logs.getvalue().encode(), shown(spans)
    assert b'"trace": "Traceback' in places["logs"]
    assert {where: hits(data) for where, data in places.items() if hits(data)} == {}
    for where, data in places.items():
        assert b"[secret STRIPE_KEY]" in data, f"it came by {where}, and was masked there"
    assert len(forms(VALUE)) > 12


# ── planted faults ───────────────────────────────────────────────────────────────────────────────────────────────────

OFF = types.SimpleNamespace(
    on=False, text=lambda value: value, data=lambda value: value, name_of=lambda _value: "STRIPE_KEY"
)
FAULTS = {
    "wire": "database",
    "artifacts and contents": "database",
    "names of steps": "database",
    "cut messages": "database",
    "cut outputs": "database",
    "base64": "database",
    "logs": "logs",
    "spans": "spans",
}


def plant(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "wire":
        monkeypatch.setattr(wire, "mask", OFF)
    elif fault == "artifacts and contents":
        monkeypatch.setattr(resources, "mask", OFF)
    elif fault == "names of steps":
        monkeypatch.setattr(scope, "mask", OFF)
    elif fault == "cut messages":
        real = wire.error_value

        def late(error: BaseException) -> dict[str, Any]:
            real_mask, wire.mask = wire.mask, OFF  # type: ignore[attr-defined]
            try:
                return real(error)
            finally:
                wire.mask = real_mask  # type: ignore[attr-defined]

        monkeypatch.setattr(wire, "error_value", late)
    elif fault == "cut outputs":
        monkeypatch.setattr(calls, "mask", OFF)
        monkeypatch.setattr(calls, "excerpt", lambda text, *_: text[max(text.find("sk_live"), 0) :][:14])
    elif fault == "base64":
        monkeypatch.setattr(secret_forms, "_inside_base64", lambda _raw: set())
        monkeypatch.setattr(
            mask, "forms_of", secret_forms.forms_of.__wrapped__
        )  # both without the forms that other tests computed
        monkeypatch.setattr(mask, "_filtered", mask._filtered.__wrapped__)
    elif fault == "logs":
        monkeypatch.setattr(secrets, "_mask_record", lambda _record: None)
    elif fault == "spans":
        monkeypatch.setattr(telemetry, "mask", OFF)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@only_file
async def test_without_one_mask_the_search_finds_the_secret(
    url: str, monkeypatch: pytest.MonkeyPatch, logs: io.StringIO, spans: Spans, fault: str
) -> None:
    places, _ = await spread(url, monkeypatch, fault)
    places["logs"], places["spans"] = logs.getvalue().encode(), shown(spans)
    assert hits(places[FAULTS[fault]]), f"nobody noticed that {fault} was not masked"
