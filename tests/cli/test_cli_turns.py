"""show --turn N: exactly the messages that a model got."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from onward import Onward
from onward.agent.loop import CHECKPOINT_EVERY_TURNS
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.core.journal.checkpoint import Checkpoints
from tests.cli.conftest import Run


@tool
def check_disk(path: str = "/") -> str:
    """How full is the disk?"""
    return f"{path}: 93 %\n\x1b[2Jnothing else"


@pytest.fixture
def done(tmp_path: Path) -> tuple[str, str, ScriptedModel]:
    """A database, the id of an agent's task in it, and its model."""
    url = f"sqlite:///{tmp_path / 'onward.db'}"
    model = ScriptedModel([[("check_disk", {"path": "/var"})], "It is full."])

    async def work() -> str:
        app = Onward(url)
        devops = app.agent("devops", model=model, tools=[check_disk], instructions="You fix disks.")
        async with app.worker():
            handle = await app.submit(devops, "Look.")
            await handle.result(timeout=60)
        return handle.id

    return url, asyncio.run(work()), model


def test_the_messages_of_a_turn(onward: Run, done: tuple[str, str, ScriptedModel]) -> None:
    url, task_id, model = done
    for number, request in enumerate(model.asked, 1):
        document = onward("show", task_id, "--turn", str(number), "--json", "--db", url).json
        *conversation, state = document["messages"]
        assert conversation == [dict(message) for message in request.conversation]
        assert state == {"role": "system", "content": request.state.strip()}
    assert document["reply"] == {"role": "assistant", "content": "It is full."}
    output = onward("show", task_id, "--turn", "1", "--db", url)
    assert output.status == 0
    assert "You fix disks." in output.out
    assert 'assistant\n  calls check_disk({"path": "/var"})\n' in output.out
    output = onward("show", task_id, "--turn", "2", "--db", url)
    assert "tool\n  /var: 93 %\n  \\x1b[2Jnothing else\n" in output.out, (
        "line breaks stay, and other control characters are escaped"
    )


def test_the_journal_of_an_agent_is_readable(onward: Run, done: tuple[str, str, ScriptedModel]) -> None:
    url, task_id, _ = done
    output = onward("show", task_id, "--db", url)
    assert "turn 1: check_disk" in output.out
    assert re.search(r"model +\d\.\d\d s  turn 1, \d+ tokens in, 10 out\n", output.out)
    assert re.search(r"check_disk +\d\.\d\d s  \d+ bytes for the model\n", output.out)
    assert f"onward show {task_id[-8:]} --turn N" in output.err


def test_an_unknown_turn(onward: Run, done: tuple[str, str, ScriptedModel]) -> None:
    url, task_id, _ = done
    output = onward("show", task_id, "--turn", "3", "--db", url)
    assert output.status == 2
    assert "has 2 turns; there is no turn 3" in output.sentence


def test_a_turn_that_was_dropped(onward: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'onward.db'}"
    turns = CHECKPOINT_EVERY_TURNS + 2

    async def work() -> str:
        app = Onward(url)
        model = ScriptedModel([[("check_disk", {"path": "/var"})]] * turns + ["It is full."])
        app.agent("devops", model=model, tools=[check_disk], checkpoint=Checkpoints("on_state_change", keep=1))
        async with app.worker():
            handle = await app.submit("devops", "Look.")
            await handle.result(timeout=60)
        return handle.id

    task_id = asyncio.run(work())
    output = onward("show", task_id, "--turn", "2", "--db", url)
    assert output.status == 2
    assert f"turn 2 of task {task_id} was dropped: checkpoint 1 stands for it" in output.sentence
    last = onward("show", task_id, "--turn", str(turns + 1), "--json", "--db", url).json
    assert last["reply"] == {"role": "assistant", "content": "It is full."}
    shown = onward("show", task_id, "--db", url)
    assert "(dropped, covered by checkpoint 1)" in shown.out
    assert onward("follow", task_id, "--db", url).status == 0
