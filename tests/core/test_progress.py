"""Progress: every record becomes an update or nothing, whatever it contains, and a late reader gets the same updates."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward import Onward, tool
from onward.agent.model import ModelUnavailable, Reply, Request
from onward.agent.models.scripted import ScriptedModel
from onward.client.parse import parse_update
from onward.core import record as r
from onward.core.journal import progress
from onward.core.journal.progress import STATUSES, ModelText, ProgressReader, Update
from onward.core.record import Record
from onward.server.live.render import to_json_bytes, update_json
from onward.store.port.core import Batch, Store
from tests.kit import Lab, begun, entry

ALL_KINDS = {value for name, value in vars(r).items() if isinstance(value, str) and name.isupper()}
KINDS = [*sorted(ALL_KINDS), "new.kind"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
WORDS = ("result", "error", "text", "turn", "attempt", "withdrawn", "step", "total", "message", "tools", "dropped")
SAID = st.dictionaries(
    st.sampled_from((*WORDS, "reason", "kind", "value", "undone", "data", "bytes", "id", "asked")), JSON
)
KEYS = st.sampled_from(["", "s", "s#2", "[a/b]s#3", "[saga/undo]s", "[@3]model#2", "model", "[", "]", "[x"]) | st.text()
DATA = st.one_of(
    st.binary(max_size=30),
    JSON.map(lambda value: json.dumps(value).encode()),
    SAID.map(lambda value: json.dumps(value).encode()),
    st.just(b"[" * 3000),
    st.just(b'{"text":"\\ud800","turn":1}'),
)


def records_of(parts: list[tuple[str, str, bytes]]) -> list[Record]:
    return [Record(n, 0, kind, key, data, 1.7e9 + n) for n, (kind, key, data) in enumerate(parts, 1)]


def updates_of(task_id: str, records: list[Record], lead: progress.Lead = progress.Lead()) -> list[Update | ModelText]:  # noqa: B008
    """All updates of these records, in order."""
    reader, updates = ProgressReader(task_id, lead), list[Update | ModelText]()
    for record in records:
        update = reader.read(record)
        updates += [*reader.withdrawn(), *([update] if update else ())]
    return updates


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(KINDS), KEYS, DATA), max_size=20))
def test_any_record_can_be_read(parts: list[tuple[str, str, bytes]]) -> None:
    reader = ProgressReader("t")
    for record in records_of(parts):
        update = reader.read(record)
        for piece in (*reader.withdrawn(), reader.new_text()):
            assert piece is None or to_json_bytes(piece._asdict())
        if update is not None:
            assert update.seq == record.seq
            assert update.status in STATUSES
            assert len(update.message) <= progress.MAX_MESSAGE_CHARS
            assert len(update.tool) <= progress.MAX_MESSAGE_CHARS
            assert isinstance(update.step, int)
            assert 0 <= update.step <= 2**53
            assert 0 <= update.total_step <= 2**53
            assert b"\n" not in to_json_bytes(update_json(update))


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(KINDS), KEYS, DATA), max_size=25), st.data())
def test_a_late_reader_gets_the_same_updates(parts: list[tuple[str, str, bytes]], data: Any) -> None:
    records = records_of(parts)
    cut = data.draw(st.integers(0, len(records)))
    late = updates_of("t", records[cut:], progress.lead(records[:cut]))
    all_of_it = updates_of("t", records)
    assert [update for update in late if isinstance(update, Update)] == [
        update for update in all_of_it if isinstance(update, Update) and update.seq > cut
    ]


def test_every_kind_of_record_is_handled() -> None:
    silent = {r.LOCK_LEFT, r.WAITED, r.HEARD, r.SAGA, r.SAGA_DONE, r.VERSION, r.PATCHED, r.CHECKPOINT}
    assert ALL_KINDS - progress._SUMMARIES.keys() == silent


def test_only_an_end_is_an_end() -> None:
    ends = {progress.COMPLETED, progress.ERROR, progress.CANCELLED}
    for kind in KINDS:
        update = ProgressReader("t").read(Record(1, 0, kind, "s", b'{"error":{"type":"E","message":"m"}}', 0.0))
        assert (update is not None and update.status in ends) == (kind in r.ENDS), kind


# ── real journals ────────────────────────────────────────────────────────────────────────────────────────────────────


async def give(value: Any = None) -> Any:
    return value


async def saga(ctx: Any) -> None:
    async def undo(*_: Any, **__: Any) -> None: ...

    async with ctx.saga():
        await ctx.step(give, 1, name="one", undo=undo)
        await ctx.step(give, 2, name="two", undo=undo)
        raise ValueError("no")


def statuses(updates: list[Update | ModelText]) -> list[str]:
    return [update.status for update in updates if isinstance(update, Update)]


async def test_a_plain_task(lab: Lab) -> None:
    @lab.app.task
    async def work(ctx: Any) -> str:
        await ctx.step(give, {"a": 1}, name="fetch")
        await ctx.step(give, 2, name="fetch")
        ctx.progress("half", step=5, total=10)
        await ctx.step(give, name="store")
        return "fine"

    task = await lab.run(work)
    updates = [
        update
        for update in updates_of(task.task_id, await lab.app.service.journal(task.task_id))
        if isinstance(update, Update)
    ]
    assert [(u.step, u.total_step, u.status, u.tool, u.message) for u in updates] == [
        (0, 0, "waiting", "", "submitted"),
        (0, 0, "thinking", "", "a worker goes on"),
        (1, 0, "tool_result", "fetch", '{"a": 1}'),
        (2, 0, "tool_result", "fetch", "2"),
        (5, 10, "thinking", "", "half"),
        (5, 10, "tool_result", "store", ""),
        (5, 10, "completed", "", "fine"),
    ]
    assert {u.task_id for u in updates} == {task.task_id}


async def test_a_saga_that_is_undone(lab: Lab) -> None:
    lab.app.task(retry=1)(saga)
    task = await lab.run("saga")
    updates = updates_of(task.task_id, await lab.app.service.journal(task.task_id))
    assert statuses(updates)[2:] == ["tool_result", "tool_result", "undo", "undo", "undo", "undo", "error"]
    messages = [u.message for u in updates if isinstance(u, Update)]
    assert messages[4] == "given up: ValueError: no"
    assert messages[-2] == "undone: two, one"
    assert messages[-1] == "ValueError: no"


async def test_an_agent(lab: Lab) -> None:
    @tool
    async def look(path: str) -> str:
        """Look."""
        return f"{path} is full"

    script = [[("look", {"path": "/"})], [("look", {"path": "/a"}), ("look", {"path": "/b"})], "all is full"]
    lab.app.agent("janitor", model=ScriptedModel(script), tools=[look])
    task = await lab.run("janitor", "clean up")
    updates = [
        update
        for update in updates_of(task.task_id, await lab.app.service.journal(task.task_id))
        if isinstance(update, Update)
    ]
    seen = [(u.status, u.tool, u.step) for u in updates[2:]]
    assert seen == [
        ("thinking", "", 1),
        ("tool_call", "look", 1),
        ("tool_result", "look", 1),
        ("thinking", "", 2),
        ("tool_call", "look, look", 2),
        ("tool_result", "look", 2),
        ("tool_result", "look", 2),
        ("thinking", "", 3),
        ("thinking", "", 3),
        ("completed", "", 3),
    ], seen
    assert updates[-1].message == "all is full"
    assert updates[-2].message == "all is full"


class Broken:
    """A model that emits forty words, and breaks off the first time."""

    name = "broken"

    def __init__(self, clock: Any) -> None:
        self.clock, self.breaks = clock, 1

    async def ask(self, request: Request, emit: Any) -> Reply:
        for number in range(40):
            await self.clock.sleep(0.1)
            emit(f"w{number} ")
            if self.breaks and number == 19:
                self.breaks -= 1
                raise ModelUnavailable("broken", "it broke off")
        return Reply("".join(f"w{number} " for number in range(40)))


async def test_live_text_comes_in_pieces_and_is_withdrawn(lab: Lab) -> None:
    lab.app.agent("talker", model=Broken(lab.clock))
    task = await lab.run("talker", "speak")
    records = await lab.app.service.journal(task.task_id)
    reader, shown, withdrawn = ProgressReader(task.task_id), dict[tuple[int, int], str](), []
    for record in records:
        reader.read(record)
        withdrawn += [(piece.turn, piece.attempt) for piece in reader.withdrawn()]
        if (text := reader.new_text()) is not None:
            before = shown.get((text.turn, text.attempt), "")
            assert len(before) == text.offset
            shown[text.turn, text.attempt] = before + text.text
    (failed, good) = shown
    assert withdrawn == [failed]
    assert failed < good
    assert task.result.startswith(shown[good])
    assert len(shown[good]) > 50
    live = [record.seq for record in records if record.kind == r.PROGRESS and "text" in record.value]
    for cut in range(len(records) + 1):
        late = ProgressReader(task.task_id, progress.lead(records[:cut])).new_text()
        if late is None:
            continue
        assert late.offset == 0, "a reader that comes back gets all of it"
        assert shown[late.turn, late.attempt].startswith(late.text)
        assert cut >= live[0]
    assert ProgressReader(task.task_id, progress.lead(records)).new_text() is None, (
        "text of an ended attempt is not shown again"
    )


async def test_text_from_before_another_shift_is_void() -> None:
    data = b'{"text":"half a sen","turn":1,"attempt":1,"step":1}'
    reader = ProgressReader("t")
    reader.read(Record(1, 0, r.SHIFT, "", b"{}", 0.0))
    reader.read(Record(2, 1, r.PROGRESS, "", data, 0.0))
    assert reader.new_text() == ModelText("t", 1, 1, 0, "half a sen")
    assert reader.withdrawn() == []
    reader.read(Record(3, 3, r.SHIFT, "", b"{}", 0.0))
    assert reader.withdrawn() == [ModelText("t", 1, 1, 0, "", withdrawn=True)]
    assert reader.new_text() is None


@pytest.mark.parametrize("kind", [r.RESUMED, r.FORKED])
def test_text_of_a_worker_that_died_is_void_when_the_task_is_resumed_or_forked(kind: str) -> None:
    """The journal has no record of the death: the resume, or the fork, is the first that ends the text."""
    records = [
        Record(1, 0, r.SHIFT, "", b"{}", 0.0),
        Record(2, 1, r.PROGRESS, "", b'{"text":"half a sen","turn":1,"attempt":1,"step":1}', 0.0),
        Record(3, 0, kind, "", b"{}", 0.0),
    ]
    reader = ProgressReader("t")
    for record in records[:2]:
        reader.read(record)
    assert reader.new_text() == ModelText("t", 1, 1, 0, "half a sen")
    reader.read(records[2])
    assert reader.withdrawn() == [ModelText("t", 1, 1, 0, "", withdrawn=True)]
    assert ProgressReader("t", progress.lead(records)).new_text() is None


@pytest.mark.parametrize("kind", sorted(progress.BREAKS - {r.STEP_DONE, r.STEP_FAILED}))
def test_text_is_void_when_its_shift_ends(kind: str) -> None:
    reader = ProgressReader("t")
    reader.read(Record(2, 1, r.PROGRESS, "", b'{"text":"half a sen","turn":1,"attempt":2,"step":1}', 0.0))
    assert reader.new_text() == ModelText("t", 1, 2, 0, "half a sen")
    reader.read(Record(3, 1, kind, "", b"{}", 0.0))
    assert reader.withdrawn() == [ModelText("t", 1, 2, 0, "", withdrawn=True)]


def test_text_that_was_never_shown_is_not_withdrawn() -> None:
    text, shift = (
        Record(2, 1, r.PROGRESS, "", b'{"text":"half","turn":1,"attempt":2}', 0.0),
        Record(3, 3, r.SHIFT, "", b"{}", 0.0),
    )
    first = ProgressReader("t")
    first.read(text)
    first.read(shift)
    assert first.withdrawn() == [], "the reader has not got this text"
    back = ProgressReader("t", again=True)
    back.read(text)
    back.read(shift)
    assert [piece.attempt for piece in back.withdrawn()] == [2], "the reader may have seen it before it was cut off"
    back.read(Record(4, 3, r.PROGRESS, "", b'{"text":"half","turn":1,"attempt":4}', 0.0))
    back.read(Record(5, 5, r.SHIFT, "", b"{}", 0.0))
    assert back.withdrawn() == [], "this came after an update that is new to the reader"


# ── the store's verb ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def talkative_app(app: Onward) -> Onward:
    @app.task
    async def chatty(ctx: Any, n: int) -> int:
        for number in range(n):
            await ctx.step(lambda number=number: number, name="step")
            if number % 2:
                ctx.progress(f"at {number}", step=number, total=n)
            if number % 3 == 0:
                for piece in range(3):
                    ctx.progress(step=number, turn=number, attempt=1, text=f"p{piece}")
        return n

    return app


async def test_the_store_returns_the_lead_of_a_late_reader(talkative_app: Onward) -> None:
    async with talkative_app.worker():
        task = await talkative_app.submit("chatty", 9)
        await task.result(60)
    records = await talkative_app.service.journal(task.id)
    for cut in range(len(records) + 1):
        lead = await talkative_app.store.tails.lead(task.id, cut)
        assert lead == progress.lead(records[:cut]), cut
        assert updates_of(task.id, records[cut:], lead) == [
            update for update in updates_of(task.id, records) if isinstance(update, Update) and update.seq > cut
        ]
    assert await talkative_app.store.tails.lead("nobody", 5) == progress.Lead()


async def test_the_store_ends_a_text_at_the_same_records(store: Store) -> None:
    for kind in sorted(ALL_KINDS - {r.SUBMITTED}):
        held = await begun(store)
        text = entry(held, 1, r.PROGRESS, "", b'{"text":"half","turn":1,"attempt":1}')
        await store.save("w1", Batch([text, entry(held, 2, kind, "s", b"{}")]))
        records = await store.journal(held.id)
        assert await store.tails.lead(held.id, records[-1].seq) == progress.lead(records), kind


def test_a_position_of_zero_is_not_the_count_of_steps() -> None:
    """A handler that begins another part reported step 0 of 6, and followers saw 50 of 6."""
    steps = [(r.STEP_DONE, f"s#{n}", b'{"result":1}') for n in range(1, 51)]
    new_part = (r.PROGRESS, "", b'{"message":"part two","step":0,"total":6}')
    unknown = (r.PROGRESS, "", b'{"message":"more","step":0,"total":0}')
    updates = [
        update for update in updates_of("t", records_of([*steps, new_part, unknown])) if isinstance(update, Update)
    ]
    assert [(update.step, update.total_step) for update in updates[-3:]] == [(50, 0), (0, 6), (50, 0)]


async def test_further_values_are_in_the_update(app: Onward) -> None:
    @app.task
    async def copy(ctx: Any) -> None:
        ctx.progress("copying", 1, 2, file="a.txt", sizes=[1, 2])
        ctx.progress("large", big="x" * progress.MAX_DATA_BYTES)

    async with app.worker():
        updates = [update async for update in (await app.submit(copy)).follow()]
    by_message = {update.message: update for update in updates}
    assert by_message["copying"].data == {"file": "a.txt", "sizes": [1, 2]}
    assert by_message["large"].data == {} == by_message["submitted"].data
    assert len(set(updates)) == len(updates), "updates have a hash"
    received = parse_update({**update_json(by_message["copying"]), "seq": by_message["copying"].seq})
    assert received.data == {"file": "a.txt", "sizes": [1, 2]}, "over HTTP too"
