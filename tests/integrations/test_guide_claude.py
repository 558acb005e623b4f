"""The code of the guide claude.md, with the real program and the test server in the place of Anthropic."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rig.aimock import AIMock
from tests.agent.conftest import openai_server as openai_server
from tests.docs.test_guides import GUIDES
from tests.integrations.test_claude import sdk as sdk
from tests.integrations.test_claude import turns


@pytest.mark.slow
async def test_the_fixer(openai_server: AIMock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openai_server.script(turns({0: {"content": "Nothing is broken."}}))
    for name, value in {
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{openai_server.port}",
        "ANTHROPIC_API_KEY": "k",
        "CLAUDE_CONFIG_DIR": str(tmp_path / "home"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
        "ONWARD_DB": f"sqlite:///{tmp_path}/onward.db",
    }.items():
        monkeypatch.setenv(name, value)
    text = (GUIDES / "claude.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n# fixer.py\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {"__name__": "fixer"}
    exec(compile(code.replace("/srv/shop", str(tmp_path)), "fixer.py", "exec", dont_inherit=True), names)
    app = names["app"]
    async with app.worker():  # type: ignore[attr-defined]
        task = await app.submit("fix", {"prompt": "Look."})  # type: ignore[attr-defined]
        assert await task.result(timeout=240) == "Nothing is broken."
