"""The examples with agents of other frameworks, with a kill at every point."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import openai
import pytest

from onward.testing import MemoryApp, crashes
from rig import openai_agents
from rig.aimock import AIMock
from rig.ledger import Ledger
from rig.server import Unavailable
from tests.kit import drain

pytestmark = pytest.mark.slow

SCRIPT = [
    {"match": {"turnIndex": 0}, "response": {"toolCalls": [{"name": "check_disk", "arguments": "{}"}]}},
    {"match": {"turnIndex": 1}, "response": {"toolCalls": [{"name": "clean_logs", "arguments": '{"keep":1}'}]}},
    {"match": {"turnIndex": 2}, "response": {"content": "It has room again."}},
]  # fmt: skip


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    monkeypatch.setenv("LOGS", str(folder))
    return folder


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch, openai_server: AIMock) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", openai_server.url)
    openai_server.script(SCRIPT)


async def _at_every_point(example: types.ModuleType, goal: Any, logs: Path) -> Any:
    """Run the example with a kill at every point. Returns the last result."""
    points = 0
    async for app in crashes(example.app):
        for name in ("shop.log", "shop.log.1", "shop.log.2", "shop.log.3"):
            (logs / name).write_text("x" * 1000)
        task = await app.submit("devops", goal)
        await _decide(app, logs)
        result = await task.result()
        assert sorted(os.listdir(logs)) == ["shop.log", "shop.log.1"], app.killed_at
        points += 1
    assert points > 8
    return result


async def _decide(app: MemoryApp, logs: Path) -> None:
    while await drain(app):
        (ask,) = await app.asks()
        assert len(os.listdir(logs)) == 4, "nothing is deleted before the yes"
        if ask.kind == "question":
            await app.answer(ask.id, "yes")
        else:
            await app.decide(ask.id, "approve")


@pytest.mark.usefixtures("provider")
async def test_pydantic_ai(logs: Path, openai_server: AIMock) -> None:
    from examples import disk_pydantic_ai

    assert await _at_every_point(disk_pydantic_ai, "I'm out of disk space. Fix it.", logs) == "It has room again."


@pytest.mark.usefixtures("provider")
async def test_openai_agents(logs: Path, openai_server: AIMock, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        openai_agents.obtain()
    except Unavailable as missing:
        pytest.skip(str(missing))
    import agents

    from examples import disk_openai_agents

    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    agents.set_default_openai_client(openai.AsyncOpenAI(base_url=openai_server.url, api_key="k"), use_for_tracing=False)
    result = await _at_every_point(disk_openai_agents, "I'm out of disk space. Fix it.", logs)
    assert result == "It has room again."


async def test_langgraph(logs: Path) -> None:
    from examples import disk_langgraph

    result = await _at_every_point(disk_langgraph, {"notes": []}, logs)
    assert result["notes"][1:] == ["yes", "deleted shop.log.2, shop.log.3"]


async def test_claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is the one that plays `claude` in the tests of faults: it looks around, and pays after an approval."""
    from onward.integrations.claude import OnwardSessionStore, run
    from onward.testing import memory_app

    plain = run._Stretch.run
    try:
        from tests.faults import claudes
    except Unavailable as missing:
        pytest.skip(str(missing))
    from examples import disk_claude

    ledger = Ledger(tmp_path / "ledger")
    ledger.path.touch()
    claudes.add(memory_app(), ledger)  # writes the program
    monkeypatch.setattr(run._Stretch, "run", plain)
    async for app in crashes(disk_claude.app):
        ledger.path.write_text("")
        options = claudes.options_of(app, ledger, tmp_path, "1")
        options.session_store = OnwardSessionStore(app)
        monkeypatch.setattr(disk_claude, "options", lambda options=options: options)
        task = await app.submit("devops", "Look around, and pay.")
        while await drain(app):
            (ask,) = await app.asks()
            assert not [line for line in ledger.read() if line[0] == "paid"] or app.killed_at
            await app.decide(ask.id, "approve")
        assert await task.result() == claudes.ANSWER, app.killed_at
        assert len([line for line in ledger.read() if line[0] == "paid"]) == 1
