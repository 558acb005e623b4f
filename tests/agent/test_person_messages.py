"""A message from a person to an agent: the agent reads it once, at the next turn, between whole turns, also after kills."""

from __future__ import annotations

from typing import Any

import pytest

from onward import Onward, State
from onward.agent.loop import CHECKPOINT_EVERY_TURNS
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.core import record as r
from onward.core.budget import Budget
from onward.core.journal.checkpoint import EVERY_ITERATION
from onward.engine.shift.mail import Message
from onward.engine.shift.waits import Waits
from onward.errors import InvalidInput, StateConflict, TaskNotFound
from onward.store.port.core import Store
from onward.testing import MemoryApp, crashes, drain, memory_app
from tests.agent.pairing import badly_paired
from tests.kit import Lab, eventually

MESSAGE = "Not the logs!"


@tool
async def look(path: str) -> str:
    """Look there."""
    return f"{path}: fine"


@tool(risk="write_local", idempotent=True)
async def clean(path: str) -> str:
    """Clean it."""
    return "clean"


def user_texts(request: Any) -> list[str]:
    """The messages of people in a request."""
    return [str(message["content"]) for message in request.conversation if message["role"] == "user"]


def message_counts(model: ScriptedModel, text: str = MESSAGE) -> list[int]:
    """How often the message stands in each request."""
    return [user_texts(request).count(text) for request in model.asked]


async def records(app: Onward, task_id: str, kind: str) -> list[Any]:
    return [record.value for record in await app.service.journal(task_id) if record.kind == kind]


class Speaking(ScriptedModel):
    """A model during whose turns a person sends messages to its task: `words` are the messages by turn."""

    def __init__(self, script: Any, app: Onward, words: dict[int, str]) -> None:
        super().__init__(script)
        self.app, self.words, self.task_id = app, words, ""

    async def ask(self, request: Any, emit: Any) -> Any:
        turn = sum(message["role"] == "assistant" for message in request.conversation)
        if turn in self.words:
            await self.app.message(self.task_id, self.words[turn], id=f"word {turn}")
        return await super().ask(request, emit)


# ── without crashes ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_it_is_read_at_the_next_turn_between_whole_turns(app: Onward) -> None:
    model = Speaking([[("look", {"path": "/a"}), ("look", {"path": "/b"})], "as you wish"], app, {0: MESSAGE})
    agent = app.agent("devops", model=model, tools=[look])
    handle = await app.submit(agent, "Clean up.")
    model.task_id = handle.id
    async with app.worker():
        assert await handle.result(timeout=60) == "as you wish"
    assert message_counts(model) == [0, 1]
    roles = [message["role"] for message in model.asked[1].conversation]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]
    assert all(badly_paired(request.messages) == [] for request in model.asked)
    assert [record_value["value"] for record_value in await records(app, handle.id, r.MESSAGE)] == [MESSAGE]
    assert [record_value["n"] for record_value in await records(app, handle.id, r.HEARD)] == [[1]]
    assert (await app.replay(handle.id)).agrees


async def test_a_message_from_before_the_start_comes_after_the_goal(app: Onward) -> None:
    model = ScriptedModel(["done"])
    agent = app.agent("devops", model=model)
    handle = await app.submit(agent, "Clean up.")
    await app.message(handle.id, MESSAGE)
    await app.message(handle.id, "And be quick.", id="same")
    await app.message(handle.id, "And be quick.", id="same")
    async with app.worker():
        assert await handle.result(timeout=60) == "done"
    assert user_texts(model.asked[0]) == ["Clean up.", MESSAGE, "And be quick."]


async def test_an_agent_that_was_about_to_answer_goes_on_with_it(app: Onward) -> None:
    model = Speaking(["all done", "no, one more thing"], app, {0: MESSAGE})
    handle = await app.submit(app.agent("devops", model=model), "Clean up.")
    model.task_id = handle.id
    async with app.worker():
        assert await handle.result(timeout=60) == "no, one more thing"
    last = model.asked[1].conversation
    assert [(message["role"], message["content"]) for message in last[1:]] == [
        ("user", "Clean up."),
        ("assistant", "all done"),
        ("user", MESSAGE),
    ]


async def test_a_message_that_was_accepted_at_the_last_moment_is_read(app: Onward) -> None:
    """It comes after the agent's last model call and before its result is written."""
    model = ScriptedModel(["all done", "read it"])
    handle = await app.submit(app.agent("devops", model=model), "Clean up.")
    save, sent = app.store.save, []

    async def late(worker: str, batch: Any) -> set[str]:
        if batch.ends and not sent:
            sent.append(await app.message(handle.id, MESSAGE))
        return await save(worker, batch)

    app.store.save = late  # type: ignore[method-assign]
    async with app.worker():
        assert await handle.result(timeout=60) == "read it"
    assert len(sent) == 1
    assert message_counts(model) == [0, 1]
    assert await app.store.health.census() == []


async def test_a_waiting_agent_goes_on_waiting_and_reads_it_later(app: Onward) -> None:
    model = ScriptedModel([[("clean", {"path": "/a"})], [("ask_user", {"question": "Which?"})], "done"])
    agent = app.agent("devops", model=model, tools=[clean], approve=["write_local"])
    async with app.worker():
        handle = await app.submit(agent, "Clean up.")
        ask = (await eventually(app.asks))[0]
        waiting = await eventually(lambda: _waiting(app, handle.id))
        await app.message(handle.id, "one")
        after = await app.get(handle.id)
        assert (after.state, after.reason, after.updated_at) == ("waiting", "approval", waiting.updated_at)
        assert [open_ask.id for open_ask in await app.asks()] == [ask.id], "a message decides nothing"
        await app.decide(ask.id, "approve")
        ask = (await eventually(lambda: app.asks("question")))[0]
        await eventually(lambda: _waiting(app, handle.id))
        await app.message(handle.id, "two")
        assert (await app.get(handle.id)).reason == "question"
        assert len(await app.asks("question")) == 1, "a message answers nothing"
        await app.answer(ask.id, "the second")
        assert await handle.result(timeout=60) == "done"
    assert [user_texts(request) for request in model.asked] == [
        ["Clean up."],
        ["Clean up.", "one"],
        ["Clean up.", "one", "two"],
    ]
    assert all(badly_paired(request.messages) == [] for request in model.asked)


async def _waiting(app: Onward, task_id: str) -> Any:
    task = await app.get(task_id)
    return task if task.state is State.WAITING else None


async def test_an_agent_that_waits_for_a_budget_goes_on_waiting(lab: Lab) -> None:
    model = ScriptedModel([[("look", {"path": "/"})], "done"])
    lab.app.agent("devops", model=model, tools=[look], budget=Budget(max_steps=1))
    await lab.start()
    task_id = await lab.submit("devops", "Look.")
    assert (await lab.settled(task_id)).reason == "budget"
    shifts = (await lab.kinds(task_id)).count(r.SHIFT)
    await lab.app.message(task_id, MESSAGE)
    await lab.clock.until(lab.clock.sleep(60))
    assert (await lab.app.get(task_id)).reason == "budget"
    assert (await lab.kinds(task_id)).count(r.SHIFT) == shifts, "no shift was started"
    await lab.app.raise_budget(task_id, max_steps=9)
    assert (await lab.ended(task_id)).result == "done"
    assert message_counts(model) == [0, 1]


async def test_a_resumed_agent_reads_earlier_messages(lab: Lab) -> None:
    model = ScriptedModel([RuntimeError("no"), "done"])
    lab.app.agent("devops", model=model, retry=1)
    await lab.start()
    task_id = await lab.submit("devops", "Look.")
    await lab.ended(task_id)
    with pytest.raises(StateConflict, match=r"failed and cannot be told anything; it has ended; `onward resume`"):
        await lab.app.message(task_id, MESSAGE)


async def test_refused_messages(lab: Lab) -> None:
    lab.app.agent("devops", model=ScriptedModel(["done"]))
    task_id = await lab.submit("devops", "Look.")
    for text in ("", " \n", None, 7):
        with pytest.raises(InvalidInput, match="a string that is not blank"):
            await lab.app.message(task_id, text)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="at most 64,000 characters, and this one 64,001"):
        await lab.app.message(task_id, "x" * 64_001)
    with pytest.raises(TaskNotFound):
        await lab.app.message("nobody", MESSAGE)
    await lab.start()
    await lab.ended(task_id)
    with pytest.raises(StateConflict, match=rf"it has ended; submit\(…, after='{task_id}'\) goes on where it ended"):
        await lab.app.message(task_id, MESSAGE)


async def test_a_handler_that_is_no_agent_gets_a_signal(app: Onward) -> None:
    @app.task
    async def listen(ctx: Any) -> Any:
        first = await ctx.signal("message")
        await ctx.signal("go")
        return [first, await ctx.messages(), await ctx.messages()]

    async with app.worker():
        handle = await app.submit(listen)
        await app.message(handle.id, "one")
        await app.message(handle.id, "two")
        await app.signal(handle.id, "message", "three")
        await app.signal(handle.id, "other", "message")
        await app.signal(handle.id, "go")
        assert await handle.result(timeout=60) == ["one", ["two", "three"], []]


async def test_a_message_wakes_a_handler_that_waits_for_it_beside_an_approval(app: Onward) -> None:
    """The task's reason is the approval, but it waits for the message as well."""

    @app.task
    async def both(ctx: Any) -> Any:
        return await ctx.gather(ctx.approve("May I?"), ctx.signal("message"))

    async with app.worker():
        handle = await app.submit(both)
        await eventually(lambda: _waiting(app, handle.id))
        await app.message(handle.id, MESSAGE)
        await eventually(lambda: records(app, handle.id, r.WAITED))
        await app.decide((await app.asks())[0].id, "approve")
        assert (await handle.result(timeout=60))[1] == MESSAGE


# ── with kills ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def spoken_to(app: MemoryApp, **options: Any) -> tuple[Any, Speaking]:
    """Run an agent that gets messages before it begins, in the middle, and when it is about to answer."""
    script = [[("look", {"path": "/a"}), ("look", {"path": "/b"})], [("clean", {"path": "/a"})], "done", "really done"]
    model = Speaking(script, app, {0: "one", 1: "two", 2: "three"})
    handle = await app.submit(app.agent("devops", model=model, tools=[look, clean], **options), "Clean up.")
    model.task_id = handle.id
    await app.message(handle.id, "zero")
    await drain(app)
    return await app.get(handle.id), model


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"checkpoint": EVERY_ITERATION}], ids=["every step", "every iteration"])
async def test_killed_anywhere_each_message_is_read_once_and_in_its_place(options: dict[str, Any]) -> None:
    points = 0
    async for app in crashes():
        task, model = await spoken_to(app, **options)
        assert task.result == "really done" or (task.result == "done" and app.killed_at), app.killed_at
        assert user_texts(model.asked[-1]) == ["Clean up.", "zero", "one", "two", "three"], app.killed_at
        roles = "".join(message["role"][0] for message in model.asked[-1].conversation)
        assert roles == "suuattuatuau" or app.killed_at, "a repeated turn has the messages that came meanwhile"
        assert roles.replace("u", "").startswith("sattat"), app.killed_at
        assert all(badly_paired(request.messages) == [] for request in model.asked), app.killed_at
        read = [n for record_value in await records(app, task.task_id, r.HEARD) for n in record_value["n"]]
        assert read == [1, 2, 3, 4], app.killed_at
        assert (await app.replay(task.task_id)).agrees, app.killed_at
        points += 1
    assert points > 15


async def test_a_message_that_is_read_without_a_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: a loop that does not record its reads loses messages, or reads them twice."""

    async def carelessly(self: Waits, key: str, *, last: bool) -> list[Message]:
        await self.poll_inbox()
        return self._journal.replay.mail.take_all("message")

    monkeypatch.setattr(Waits, "_take_spoken", carelessly)
    wrong = 0
    async for app in crashes():
        task, model = await spoken_to(app)
        wrong += user_texts(model.asked[-1]) != ["Clean up.", "zero", "one", "two", "three"]
        wrong += not (await app.replay(task.task_id)).agrees
    assert wrong


async def test_a_task_that_completes_with_an_unread_message_is_found(
    app: Onward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of the last moment can fail: a store that does not check the inbox loses the message."""
    for module in ("sqlite.store", "postgres.save"):
        monkeypatch.setattr(f"onward.store.{module}.check_heard", _no_check if "sqlite" in module else _no_check_async)
    model = ScriptedModel(["all done", "read it"])
    handle = await app.submit(app.agent("devops", model=model), "Clean up.")
    save = app.store.save

    async def late(worker: str, batch: Any) -> set[str]:
        if batch.ends:
            await app.message(handle.id, MESSAGE)
        return await save(worker, batch)

    app.store.save = late  # type: ignore[method-assign]
    async with app.worker():
        assert await handle.result(timeout=60) == "all done"
    assert message_counts(model) == [0]


def _no_check(*_: Any) -> None: ...


async def _no_check_async(*_: Any) -> None: ...


async def test_messages_and_checkpoints() -> None:
    """Messages before a checkpoint, and a message that waits while one is made."""
    turns = CHECKPOINT_EVERY_TURNS + 3
    app = memory_app()
    async with app:
        script = [[("look", {"path": f"/{number}"})] for number in range(turns)] + ["done"]
        model = Speaking(
            script, app, {3: "early", CHECKPOINT_EVERY_TURNS - 1: "at it", CHECKPOINT_EVERY_TURNS + 1: "late"}
        )
        handle = await app.submit(app.agent("devops", model=model, tools=[look]), "Look around.")
        model.task_id = handle.id
        await drain(app)
        assert await handle.result(timeout=1) == "done"
        assert user_texts(model.asked[-1]) == ["Look around.", "early", "at it", "late"]
        assert all(badly_paired(request.messages) == [] for request in model.asked)
        assert len(await records(app, handle.id, r.CHECKPOINT)) == 1
        assert (await app.replay(handle.id)).agrees


async def test_a_fork_reads_only_its_own_messages(lab: Lab) -> None:
    model = ScriptedModel([[("look", {"path": "/a"})], "done", "done again"])
    lab.app.agent("devops", model=model, tools=[look])
    task_id = await lab.submit("devops", "Look.")
    await lab.app.message(task_id, "one")
    await lab.start()
    await lab.ended(task_id)
    places = await lab.app.service.forks.places(task_id)
    fork = await lab.app.fork(task_id, places[-1].seq)
    await lab.app.message(fork.id, "two")
    assert (await lab.ended(fork.id)).result == "done again"
    assert user_texts(model.asked[-1]) == ["Look.", "one", "two"]


async def test_the_store_counts_a_message_and_wakes_no_task(store: Store) -> None:
    from onward.core.task import NEVER, Message
    from tests.kit import new, row

    await store.workers.join(row("w1"), 60)
    (sent,) = await store.submit([new()])
    (claimed,) = await store.claim("w1", "default", ["work"], 1)
    from onward.store.port.core import Batch, Wait

    entry = (sent.id, 3, 2, r.HANDED_BACK, "", b"{}", 0.0)
    await store.save("w1", Batch([entry], waits=[Wait(sent.id, NEVER, "approval", 1, claimed.inbox)]))
    assert (await store.send(sent.id, Message("m", "message", "message", None, b'"hi"'))).number == 1
    assert (await store.send(sent.id, Message("m", "message", "message", None, b'"hi"'))).number == 1
    task = await store.get(sent.id)
    assert task is not None
    assert (task.state, task.reason) == ("waiting", "approval")
    assert (await store.send(sent.id, Message("d", "decision", "", 3, b"{}"))).number == 2
    (again,) = await store.claim("w1", "default", ["work"], 1)
    assert again.inbox == 2
