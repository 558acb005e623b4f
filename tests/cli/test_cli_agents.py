"""onward state, submit --after, and live text in follow."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.agent.model import ModelUnavailable, Reply
from onward.agent.models.scripted import ScriptedModel
from onward.cli.output.timeline import LineRenderer, Mark
from onward.core.record import PROGRESS, Record
from tests.cli.conftest import Run


@pytest.fixture
def done(tmp_path: Path) -> tuple[str, str]:
    """A database, and the id of an agent's task in it."""
    url = f"sqlite:///{tmp_path / 'onward.db'}"

    async def work() -> str:
        app = Onward(url)
        fact = ("record_fact", {"key": "name", "value": "Ada\x1b[31m", "source": "user"})
        agent = app.agent("helper", model=ScriptedModel([[fact], "hello"]))
        async with app.worker():
            handle = await app.submit(agent, "Greet me.")
            await handle.result(timeout=60)
        return handle.id

    return url, asyncio.run(work())


def test_the_state_of_a_task(onward: Run, done: tuple[str, str]) -> None:
    url, task_id = done
    output = onward("state", task_id[-8:], "--db", url)
    assert output.out.splitlines() == ["Goal: Greet me.", "Facts:", "- name = Ada\\x1b[31m (user)"]
    document = onward("state", task_id, "--json", "--db", url).json
    assert (document["goal"], document["known_facts"][0]["value"], document["version"]) == (
        "Greet me.",
        "Ada\x1b[31m",
        1,
    )
    assert onward("state", "zzzz", "--db", url).status == 4


def test_continuing_after_a_task(onward: Run, done: tuple[str, str]) -> None:
    url, task_id = done
    task = onward("submit", "helper", '"And again."', "--after", task_id[-8:], "--db", url, "--json").json
    assert task["input"] == {"goal": "And again.", "after": task_id}
    again = onward("submit", "helper", '"x"', "--after", task["task_id"], "--db", url)
    assert again.status == 2
    assert "is pending and cannot be gone on from; wait until it has ended, or cancel it" in again.sentence
    assert onward("state", task["task_id"], "--db", url).status == 4, "no worker has started it"


@pytest.mark.slow
def test_live_text(onward: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'onward.db'}"

    class Slow:
        name = "slow"
        calls = 0

        async def ask(self, request: Any, emit: Any) -> Reply:
            self.calls += 1
            await asyncio.sleep(0.6)
            emit("the first\nwords")
            if self.calls == 1:
                raise ModelUnavailable("slow", "it broke off")
            return Reply("the first words and the last")

    async def work() -> str:
        app = Onward(url)
        slow = app.agent("slow", model=Slow())
        async with app.worker():
            handle = await app.submit(slow, "x")
            await handle.result(timeout=60)
        return handle.id

    task_id = asyncio.run(work())
    output = onward("follow", task_id, "--db", url).out
    assert output.count("the first words\n") == 2
    assert (
        output.index("the first words\n") < output.index("(the text is withdrawn)") < output.rindex("the first words\n")
    )
    assert "the first words\n" not in onward("show", task_id, "--db", url).out, "the reply has the state"


def test_the_output_keeps_the_text_of_the_current_attempt() -> None:
    renderer = LineRenderer()

    def tell(**data: Any) -> list[Mark]:
        return [line.mark for line in renderer.render(Record(1, 1, PROGRESS, "", json.dumps(data).encode(), 0.0))]

    assert tell(text="a ", turn=1, attempt=1) == [Mark.TEXT]
    tell(text="b", turn=1, attempt=1)
    assert renderer.live_text == "a b"
    tell(text="", turn=1, attempt=1, withdrawn=True)
    assert renderer.live_text == ""
    tell(text="c", turn=1, attempt=2)
    renderer.render(Record(2, 2, "shift.started", "", b"{}", 0.0))
    assert renderer.live_text == "", "another shift begins anew"
