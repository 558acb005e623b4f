"""The apps of the examples and of the demo run on Temporal as they are."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from onward.errors import TaskFailed
from rig.temporal import Temporal
from tests.cli.conftest import process
from tests.kit import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("temporal")]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def example(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`examples/deploy.py`, imported where ONWARD_ENGINE names the server."""
    monkeypatch.setenv("ONWARD_ENGINE", f"{temporal.url}?queue=examples")
    spec = importlib.util.spec_from_file_location("deploy_on_temporal", ROOT / "examples" / "deploy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_example_of_a_deploy(example: ModuleType) -> None:
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


async def test_the_demo_of_a_deploy(temporal: Temporal) -> None:
    done = await asyncio.to_thread(process, "demo", "temporal", "--json", timeout=180)
    assert done.status == 0, done.err
    assert done.json["holds"]
    assert [step["effects"] for step in done.json["steps"]] == [1] * 10
