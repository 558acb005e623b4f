"""The session store for the Claude Agent SDK: the SDK's own conformance suite, and what it does not ask."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onward import Context, Onward, Retry
from onward.errors import UsageError
from onward.integrations.claude import OnwardSessionStore
from onward.store.port.core import Store
from rig.aimock import AIMock
from rig.ledger import Ledger
from rig.server import Unavailable
from tests.agent.conftest import openai_server as openai_server
from tests.integrations import suites
from tests.kit import eventually, sql

# The SDK is in no folder that pytest-xdist imports from: a warning of its own class would stop the whole run.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
VERSION = "0.2.183"
KEY: Any = {"project_key": "shop", "session_id": "s1"}


@pytest.fixture(autouse=True)
def sdk() -> Iterator[None]:
    """The SDK, from the cache: it brings the program `claude` along, some 350 MB, so it is no package of the developers."""
    try:
        folder = suites.fetch_wheel("claude-agent-sdk", VERSION)
    except Unavailable as why:
        pytest.skip(str(why))
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    yield
    sys.path.remove(str(folder))


@pytest.mark.slow
async def test_conformance(store: Store) -> None:
    from claude_agent_sdk.testing import run_session_store_conformance

    app = Onward(store=store)
    made: list[OnwardSessionStore] = []

    def fresh() -> Any:
        made.append(OnwardSessionStore(app, tenant=os.urandom(4).hex()))
        return made[-1]

    await run_session_store_conformance(fresh)
    assert len(made) >= 14, "one for each contract"


@pytest.mark.slow
async def test_a_batch_that_is_sent_again_is_there_once(store: Store) -> None:
    app = Onward(store=store)
    batch: Any = [{"type": "user", "uuid": "a"}, {"type": "title"}, {"type": "assistant", "uuid": "b"}]
    await OnwardSessionStore(app).append(KEY, batch)
    await OnwardSessionStore(app).append(KEY, [batch[0], batch[2], {"type": "user", "uuid": "c"}])
    loaded = await OnwardSessionStore(app).load(KEY)
    assert [(entry["type"], entry.get("uuid")) for entry in loaded or ()] == [
        ("user", "a"),
        ("title", None),
        ("assistant", "b"),
        ("user", "c"),
    ]


@pytest.mark.slow
async def test_a_deleted_session_leaves_nothing(store: Store) -> None:
    sessions = OnwardSessionStore(Onward(store=store))
    await sessions.append(KEY, [{"type": "user", "uuid": "a"}])
    await sessions.append({**KEY, "subpath": "subagents/1"}, [{"type": "user", "uuid": "a"}])
    await sessions.delete(KEY)
    assert await sql(store, "SELECT count(*) FROM onward_documents") == [(0,)]


# ── the real program, against the test server ────────────────────────────────────────────────────────────────────────

BASH = {"name": "Bash", "arguments": '{"command":"echo hi >> said.txt","description":"say hi"}'}


def turns(responses: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers by the number of the turn. After an interrupted call the program adds a turn of its own."""
    return [{"match": {"turnIndex": turn}, "response": response} for turn, response in responses.items()]


def options_of(app: Onward, server: AIMock, folder: Path, home: str = "home") -> Any:
    from claude_agent_sdk import ClaudeAgentOptions

    env = {
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.port}",
        "ANTHROPIC_API_KEY": "k",
        "CLAUDE_CONFIG_DIR": str(folder / home),  # another one is another machine
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }
    (folder / "work").mkdir(exist_ok=True)
    return ClaudeAgentOptions(
        model="claude-sonnet-4-5", thinking={"type": "disabled"}, cwd=folder / "work", setting_sources=[], env=env,
        session_store=OnwardSessionStore(app),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_a_tool_waits_for_a_person_without_a_slot(
    decision: str, url: str, openai_server: AIMock, tmp_path: Path
) -> None:
    from onward.integrations.claude import run_claude

    if decision == "approve":
        openai_server.script(turns({0: {"toolCalls": [BASH]}, 2: {"toolCalls": [BASH]}, 3: {"content": "I said hi."}}))
    else:
        openai_server.script(turns({0: {"toolCalls": [BASH]}, 2: {"content": "Then I do not."}}))
    homes = itertools.count()
    app = Onward(url, poll_s=0.1)

    @app.task
    async def work(ctx: Context, prompt: str) -> str:
        return await run_claude(ctx, prompt, options_of(app, openai_server, tmp_path, f"home{next(homes)}"))

    async with app.worker(slots=1) as worker:
        task = await app.submit(work, {"prompt": "Say hi."})
        await eventually(lambda: _asked(app), 120)
        await eventually(lambda: _idle(worker), 60)
        (ask,) = await app.asks()
        assert ask.text.startswith("Bash(")
        assert not (tmp_path / "work" / "said.txt").exists()
        await app.decide(ask.id, decision)
        assert await task.result(timeout=120) == ("I said hi." if decision == "approve" else "Then I do not.")
    said = tmp_path / "work" / "said.txt"
    assert (said.read_text() if said.exists() else "") == ("hi\n" if decision == "approve" else "")


PAYS_TWICE = """
    def _has_paid(self):
        return False

    def _ask_model(self):
        turn = sum(entry["type"] == "assistant" for entry in self._entries)
        paid = sum(part["content"] == "paid 7" for part in self._parts("tool_result"))
        calls = [(f"{turn}.0", "Pay", {"cents": 7})] if paid < 2 else []
        parts = [{"type": "tool_use", "id": call, "name": name, "input": given} for call, name, given in calls]
        self._write("assistant", {"role": "assistant", "content": parts or [{"type": "text", "text": "paid"}]})
        return calls

    def _call(self, name, given):
        self._note("paid", "pay")
        if os.environ["CLERK_DIE"] == "1":
            os._exit(1)
        return "paid 7"

"""
"""Methods of a program whose model makes the same call again, and which may die in the middle of it."""


def _write_program(folder: Path) -> None:
    from tests.faults import claude_program

    place = "    @staticmethod\n    def _note"
    text = Path(claude_program.__file__).read_text().replace(place, PAYS_TWICE + place)
    (folder / "claude_program.py").write_text(text)
    (folder / "claude").write_text(f'#!/bin/sh\nexec {sys.executable} -S {folder}/claude_program.py "$@"\n')
    (folder / "claude").chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
async def test_an_approval_is_for_one_call(killed: bool, tmp_path: Path) -> None:
    """The agent makes a call again that a person has approved: in the same stretch, or after a worker died in the middle of it."""
    from onward.testing import drain, memory_app
    from tests.faults import claude_program, claudes

    app, ledger, starts = memory_app(), Ledger(tmp_path / "ledger"), itertools.count()
    _write_program(tmp_path)
    ledger.path.touch()

    @app.task(retry=Retry(attempts=3, first=0.01))
    async def work(ctx: Context) -> str:
        options = claudes.options_of(app, ledger, tmp_path, ctx.task_id)
        options.env["CLERK_DIE"] = "1" if killed and next(starts) == 1 else "0"
        return await claudes.run_claude(ctx, "Pay.", options)

    decided = 0
    async with app:
        task = await app.submit(work)
        while await drain(app):
            asks = await app.asks()
            paid = [line for line in ledger.read() if line[0] == "paid"]
            assert len(paid) <= decided, "each payment has an approval of its own"
            for ask in asks:
                await app.decide(ask.id, "approve")
                decided += 1
        assert await task.result() == claude_program.ANSWER
        assert len([line for line in ledger.read() if line[0] == "paid"]) == decided == (3 if killed else 2)
        usage = (await app.get(task.id)).usage
        views = await app.service.timelines.turns(task.id)
        last = await app.service.timelines.turn(task.id, len(views))
    assert usage is not None
    assert (usage.calls, usage.input_tokens, usage.output_tokens) == (len(views), 10 * len(views), 5 * len(views))
    assert last.messages[1] == {"role": "user", "content": "Pay."}
    assert last.messages[-1]["content"] == "paid 7"
    assert views[-1].text == "paid"
    assert {message["role"] for message in last.messages} == {"system", "user", "assistant", "tool"}


async def _asked(app: Onward) -> bool:
    return len(await app.asks()) == 1


async def _idle(worker: Any) -> bool:
    return bool(worker.running == 0)


@pytest.mark.slow
async def test_a_stretch_that_is_killed_continues_its_session(url: str, openai_server: AIMock, tmp_path: Path) -> None:
    """The first stretch fails after its answer was copied to the store; the second one does not send the prompt again."""
    from onward.integrations.claude import run as module
    from onward.integrations.claude import run_claude

    openai_server.script(turns({0: {"content": "half of it"}, 1: {"content": "all of it"}}))
    app = Onward(url, poll_s=0.1)
    deaths = [True]

    @app.task(retry=Retry(attempts=3, first=0.01))
    async def work(ctx: Context, prompt: str) -> str:
        return await run_claude(ctx, prompt, options_of(app, openai_server, tmp_path, f"home{len(deaths)}"))

    plain = module._Stretch.run

    async def dies(self: Any) -> Any:
        end = await plain(self)
        if deaths:
            deaths.pop()
            raise ConnectionError("the worker is gone")
        return end

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Stretch, "run", dies)
        async with app.worker():
            assert await (await app.submit(work, {"prompt": "Do it."})).result(timeout=240) == "all of it"
    texts = [str(request["messages"]) for request in openai_server.requests()]
    assert texts[-1].count("Do it.") == 1
    assert module.GO_ON in texts[-1]


@pytest.mark.slow
async def test_options_that_do_not_fit_are_refused(sqlite_app: Onward) -> None:
    from claude_agent_sdk import ClaudeAgentOptions

    from onward.integrations.claude import run_claude

    with pytest.raises(UsageError, match="needs a session store"):
        await run_claude(None, "x", ClaudeAgentOptions())  # type: ignore[arg-type]
    store: Any = OnwardSessionStore(sqlite_app)
    with pytest.raises(UsageError, match="sets resume itself"):
        await run_claude(None, "x", ClaudeAgentOptions(session_store=store, resume="s"))  # type: ignore[arg-type]


@pytest.fixture
def sqlite_app() -> Onward:
    return Onward("sqlite://:memory:")
