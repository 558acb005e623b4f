"""The apps of the examples and of the demo run on Temporal as they are."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import onward.demo.agent
from onward.demo.disk import FOLDER_VARIABLE, Disk
from onward.errors import TaskFailed
from rig.temporal import Temporal
from tests.cli.conftest import process
from tests.kit import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("temporal")]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def load(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], ModuleType]:
    """Imports a file where ONWARD_ENGINE names the server."""

    def load(file: Path) -> ModuleType:
        monkeypatch.setenv("ONWARD_ENGINE", f"{temporal.url}?queue=examples-{file.parent.name}-{file.stem}")
        spec = importlib.util.spec_from_file_location(f"{file.stem}_on_temporal", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


async def test_the_example_of_a_deploy(load: Callable[[Path], ModuleType]) -> None:
    example = load(ROOT / "examples" / "deploy.py")
    app = example.app
    async with app, app.worker():
        live = await app.submit("deploy", {"service": "web"})
        broken = await app.submit("deploy", {"service": "broken"})
        (ask,) = await eventually(lambda: app.asks("approval"), 60)
        await app.decide(ask.id, "approve")
        assert await live.result(60) == "web is live"
        with pytest.raises(TaskFailed, match="does not answer"):
            await broken.result(60)
    assert sorted(example.WORLD) == [f"{kind}/web" for kind in ("certificate", "container", "dns", "monitoring")]


async def test_the_agent_of_the_demo(
    load: Callable[[Path], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk.make(tmp_path)
    disk.ledger.write({"what": "killed", "waiting": False})  # the tool waits for that
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    agent = load(Path(onward.demo.agent.__file__))
    app, files = agent.app, len(disk.files())
    async with app, app.worker():
        task = await app.submit(agent.TASK, agent.GOAL)
        (ask,) = await eventually(lambda: app.asks("approval"), 60)
        assert ask.tool == "delete_logs"
        await app.decide(ask.id, "approve")
        assert "I deleted" in await task.result(60)
        spent = await app.budget(task.id)
    assert len(disk.files()) < files
    calls = [line for line in disk.ledger.lines() if line["what"] == "answered"]
    assert (spent.ledger.spent.steps, spent.ledger.budget.max_steps) == (len(calls), 20)
    assert not spent.ledger.reserved


async def test_the_demo_of_a_deploy(temporal: Temporal) -> None:
    done = await asyncio.to_thread(process, "demo", "temporal", "--json", timeout=180)
    assert done.status == 0, done.err
    assert done.json["holds"]
    assert [step["effects"] for step in done.json["steps"]] == [1] * 10
