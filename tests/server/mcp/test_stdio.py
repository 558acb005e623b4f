"""`onward mcp`: the same server over stdin and stdout, started by its client."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from onward import Onward
from rig.processes import Child
from tests.kit import not_memory, only_file

ROOT = Path(__file__).resolve().parents[3]
ENV = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}


def command(db: str, *words: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=["-m", "onward", "mcp", "--db", db, *words], env=ENV, cwd=ROOT
    )


@pytest.mark.slow
@not_memory
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_starts_it_and_works_with_it(url: str, mode: str) -> None:
    async with Client(command(url, "tests.server.mcp.noisy:app", "--expose", "shout"), mode=mode) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["submit", "get", "cancel", "patch", "answer", "decide", "shout"]
        result = await client.call_tool("shout", {"word": "hey"})
        assert result.content[0].text == "HEY", "the output of handlers does not disturb the protocol"
        done = await client.call_tool("submit", {"task": "shout", "input": "you", "wait_s": 30})
        assert done.structured_content is not None
        (content,) = (await client.read_resource(done.structured_content["resource"])).contents
        assert '"task_state": "completed"' in content.text


@pytest.mark.slow
@only_file
async def test_without_an_app_it_serves_the_verbs_with_the_given_scopes(url: str) -> None:
    async with Onward(url) as app:
        await app.service.submit([_wish()], unchecked=True)
    async with Client(command(url, "--scopes", "read")) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["get"]
        assert len((await client.list_resources()).resources) == 1
        with pytest.raises(MCPError, match="lacks the scope"):
            await client.call_tool("cancel", {"task_id": "x"})


def _wish() -> object:
    from onward.service.submission import SubmitRequest

    return SubmitRequest("somewhere else")


@pytest.mark.slow
@only_file
def test_it_ends_with_its_client_and_prints_errors(url: str, tmp_path: Path) -> None:
    with Child.module("onward", "mcp", "--db", url, env=ENV, cwd=tmp_path) as child:  # its stdin is empty
        assert child.wait(60) == 0
        assert child.lines == []
    for words, sentence in (
        (["--scopes", "all"], "some of read"),
        (["--expose", "nobody"], "no task is named 'nobody'"),
    ):
        with Child.module("onward", "mcp", "--db", url, *words, env=ENV, cwd=tmp_path) as child:
            assert child.wait(60) in {2, 4}
            assert sentence in child.errors[-1]
            assert child.lines == []
