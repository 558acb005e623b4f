"""The demo of the agent with a model behind a real server that ignores the script, refuses, or asks questions."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from onward.demo.agent import GOAL, OLD_AFTER_DAYS
from onward.demo.disk import FILES
from rig.aimock import AIMock
from tests.cli.conftest import Output, process

OLD_LOGS = [path for path, _, days in FILES if days > OLD_AFTER_DAYS]


def calls(*wanted: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"toolCalls": [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in wanted]}


def script(*responses: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"match": {"userMessage": GOAL[:10], "turnIndex": turn}, "response": response}
        for turn, response in enumerate(responses)
    ]


def play(server: AIMock | str, *words: str) -> Output:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "ONWARD_"))}
    environment |= {"OPENAI_BASE_URL": server if isinstance(server, str) else server.url, "ONWARD_MODEL": "gpt-x"}
    return process("demo", "agent", "--yes", *words, env=environment, timeout=180)


@pytest.mark.slow
def test_a_model_that_goes_its_own_way(openai_server: AIMock) -> None:
    """Two deletions in one turn, paths with a slash, a question, and a log that is in use."""
    openai_server.script(
        script(
            calls(("check_disk", {}), ("largest_files", {})),
            calls(("ask_user", {"question": "May I?"})),
            calls(("delete_logs", {"paths": ["var/log/app/app.log"]})),
            calls(
                ("delete_logs", {"paths": OLD_LOGS[:1]}), ("delete_logs", {"paths": [f"/{p}" for p in OLD_LOGS[1:]]})
            ),
            {"content": "There is room again."},
        )
    )
    done = play(openai_server, "--json")
    assert done.status == 0, done.err
    proof = done.json
    assert done.status == 0, proof["claims"]
    assert (proof["model"], proof["report"]) == ("gpt-x", "There is room again.")
    assert proof["deleted"] == dict.fromkeys(OLD_LOGS, 1)
    assert proof["turns"] == proof["answers"] == len(openai_server.requests()) == 5
    assert proof["tokens"] > 0
    results = [message["content"] for message in openai_server.requests()[-1]["messages"] if message["role"] == "tool"]
    assert any("There is nobody to ask" in result for result in results)
    assert any("'var/log/app/app.log' is in use" in result for result in results)


@pytest.mark.slow
def test_a_model_that_does_nothing_is_no_proof(openai_server: AIMock) -> None:
    openai_server.script(script({"content": "Buy a larger disk."}))
    done = play(openai_server)
    assert done.status == 1
    assert "Buy a larger disk." in done.out
    assert "The model asked for no deletion, so no worker was killed." in done.out


@pytest.mark.slow
def test_a_model_that_refuses(openai_server: AIMock) -> None:
    openai_server.script(script({"error": {"message": "no such key"}, "status": 401}))
    done = play(openai_server)
    assert done.status == 1
    assert "gpt-x at 127.0.0.1:" in done.out
    assert "the model gpt-x refused: 401" in done.sentence
    assert "no such key; check the key" in done.sentence
    assert "the demo uses a scripted model" in done.sentence


@pytest.mark.slow
def test_a_server_that_does_not_answer() -> None:
    done = play("http://127.0.0.1:9/v1")
    assert done.status == 1
    assert "the model gpt-x gave no whole answer: Connection error; check OPENAI_BASE_URL" in done.sentence
