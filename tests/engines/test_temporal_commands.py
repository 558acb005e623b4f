"""The command line on Temporal, with the code of the guide."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from rig.processes import Child
from rig.temporal import Temporal

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("temporal")]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "engines.md"


async def _run(folder: Path, engine: dict[str, str], *words: str) -> str:
    with Child.module("onward", *words, env=engine, cwd=folder) as child:
        await asyncio.to_thread(child.wait)
        return "\n".join(child.lines)


async def test_the_app_of_the_guide_runs_on_temporal(temporal: Temporal, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n# shop\.py\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "shop.py").write_text(code)
    engine = {"ONWARD_ENGINE": f"{temporal.url}?queue=guide"}
    with Child.module("onward", "worker", "shop:app", "--json", env=engine, cwd=tmp_path) as worker:
        await asyncio.to_thread(worker.wait_for, "ready")
        submit = ("submit", "greet", '{"name": "Ada"}', "--app", "shop:app", "--json", "--wait")
        answer = await _run(tmp_path, engine, *submit)
        assert json.loads(answer)["result"] == "Hello Ada"
