"""Artifacts, in every place: what was left behind comes back to the byte, to its own task and to nobody else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.app.connect import open_shelf
from onward.artifacts.keeper import MAX_ARTIFACT_BYTES, Artifacts
from onward.core import record as r
from onward.core import wire
from onward.core.encryption import OVERHEAD_BYTES
from onward.core.state import AgentState
from onward.errors import (
    ArtifactDamaged,
    ArtifactNotFound,
    ArtifactTooLarge,
    BadSetting,
    StepFailed,
    StoreUnavailable,
    TaskNotFound,
)
from onward.store.port.core import Store
from onward.testing import crashes, drain, memory_app
from rig.rclone import Rclone
from tests.artifacts.conftest import BUCKET, each_shelf, in_one_database, only_s3
from tests.kit import eventually, next_id, sql, submit

HARD = {
    "nothing": b"",
    "NUL": b"a\0b\0",
    "no UTF-8": bytes(range(256)),
    "half a character": "ä".encode()[:1],
    "escape sequences": b"\x1b[2J\x1b]0;title\x07\x9b31m",
    "line ends": b"a\r\nb\rc\n\x0b\x0c\xe2\x80\xa8",
    "five megabytes": random.Random(1).randbytes(5_000_001),
}

HOSTILE = [
    "",
    ".",
    "..",
    "../",
    "../../etc/passwd",
    "..\\..\\windows",
    "/etc/passwd",
    "//host/share",
    "~/.ssh/id_rsa",
    "file:///etc/passwd",
    "s3://other/secret",
    "%2e%2e%2fetc%2fpasswd",
    "..%00/",
    "secret\0",
    "\0",
    "a" * 32 + "\0",
    "a" * 32 + "\n",
    "a" * 31 + "/",
    "a" * 10_000,
    "A" * 32,
    "０" * 32,
    "а" * 32,
    "a" * 30 + "..",
    "\u202e" + "a" * 31,
    "\ud800" * 32,
    "CON",
    "NUL",
    "/dev/zero",
    "/proc/self/environ",
    "-rf",
    "*",
    "$(id)",
    "'; DROP TABLE onward_contents; --",
    " " + "a" * 31,
    "a" * 32 + "?versionId=1",
    "a" * 32 + "/../" + "b" * 32,
]


@pytest.mark.parametrize("what", HARD)
async def test_what_was_kept_comes_back_to_the_byte(kept: Artifacts, store: Store, what: str) -> None:
    (task_id,) = await submit(store)
    name = await kept.put(task_id, HARD[what])
    assert name == wire.content_id(HARD[what])
    assert await kept.put(task_id, HARD[what]) == name, "the same again is the same"
    assert await kept.get(task_id, name) == HARD[what]


async def test_each_task_has_its_own(kept: Artifacts, store: Store) -> None:
    (one,), (other,) = await submit(store), await submit(store)
    both, own = await kept.put(one, b"both"), await kept.put(one, b"own")
    await kept.put(other, b"both")
    assert await kept.get(other, both) == b"both"
    with pytest.raises(
        ArtifactNotFound, match=f"task {other} has no artifact '{own}'; .onward artifacts {other}. lists"
    ):
        await kept.get(other, own)
    await kept.drop(next_id())
    await kept.drop(other)
    assert await kept.get(one, both) == b"both"


@each_shelf
async def test_what_is_dropped_is_gone(kept: Artifacts, store: Store) -> None:
    (task_id,) = await submit(store)
    names = [await kept.put(task_id, b"%d" % number) for number in range(120)]
    await kept.drop(task_id)
    for name in names:
        with pytest.raises(ArtifactNotFound):
            await kept.get(task_id, name)


async def test_no_id_reaches_anything_else(kept: Artifacts, store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (task_id,) = await submit(store)
    await kept.put(task_id, b"mine")
    before = files(tmp_path)
    for hostile in HOSTILE:
        for ask in (kept.get, kept.read):
            with pytest.raises(ArtifactNotFound) as refused:
                await ask(task_id, hostile)
            assert str(refused.value).isprintable()
            assert str(refused.value).isascii()
        for use in (kept.read(hostile, "a" * 32), kept.of(hostile)):
            with pytest.raises(TaskNotFound):
                await use
    assert files(tmp_path) == before


@each_shelf
async def test_no_task_id_reaches_anything_else(kept: Artifacts, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for hostile in HOSTILE:
        for use in (kept.put(hostile, b"x"), kept.get(hostile, "a" * 32), kept.drop(hostile)):
            with pytest.raises(TaskNotFound):
                await use
    assert files(tmp_path) == ["secret"]


def files(folder: Path) -> list[str]:
    """What is in a folder, but for a database."""
    return sorted(path.name for path in folder.rglob("*") if not path.name.startswith("onward.db"))


async def test_what_was_changed_is_not_handed_out(
    kept: Artifacts, store: Store, where: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (task_id,) = await submit(store)
    name = await kept.put(task_id, b"pay 100")
    if where == "s3":
        server: Rclone = request.getfixturevalue("s3")
        (key,) = [key for key in server.objects(BUCKET) if key.endswith(f"{task_id}/{name}")]
        length = len(b"pay 900") + (0 if store.codec is None else OVERHEAD_BYTES)
        server.spoil(BUCKET, key, b"pay 900".ljust(length))  # the server keeps the length of an object
    elif where == "directory":
        (tmp_path / "artifacts" / task_id / name).write_bytes(b"pay 900")
    else:
        data = "'pay 900'::bytea" if "postgres" in where else "CAST('pay 900' AS BLOB)"
        await sql(store, f"UPDATE onward_contents SET data = {data} WHERE id = '{name}'")
    with pytest.raises(ArtifactDamaged, match=f"the artifact {name} of task {task_id} is damaged"):
        await kept.get(task_id, name)


@in_one_database
async def test_what_is_too_large_is_refused(kept: Artifacts, store: Store) -> None:
    (task_id,) = await submit(store)
    with pytest.raises(ArtifactTooLarge, match="may have 100,000,000 bytes, this has 100,000,001 and was not stored"):
        await kept.put(task_id, bytes(MAX_ARTIFACT_BYTES + 1))


# ── handlers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def reporter(app: Onward) -> Any:
    """A task that leaves something behind in each way that there is."""

    @app.task
    async def report(ctx: Any, count: int) -> list[str]:
        await ctx.patch(AgentState(goal="report"))

        async def measure(number: int) -> str:
            ref = await ctx.artifact(bytes([number]) * 3, type="raw", summary=f"measurement {number}")
            return str(ref.artifact_id)

        raw = [await ctx.step(measure, number) for number in range(count)]
        text = await ctx.artifact("all of it: " + ", ".join(raw), summary="the report")
        assert [one.artifact_id for one in ctx.state.artifacts] == [text.artifact_id]
        assert await ctx.read_artifact(raw[0]) == bytes(3)
        return [*raw, (await ctx.read_artifact(text)).decode()]

    return report


async def test_a_task_leaves_artifacts_behind(app: Onward) -> None:
    report = reporter(app)
    async with app.worker():
        task = await app.submit(report, 2)
        first, second, text = await task.result(timeout=60)
    refs = [one.model_dump() for one in await app.artifacts(task.id)]
    last = {"artifact_id": wire.content_id(text.encode()), "type": "text", "summary": "the report"}
    assert refs == [
        {"artifact_id": first, "type": "raw", "summary": "measurement 0", "bytes": 3, "step": "measure"},
        {"artifact_id": second, "type": "raw", "summary": "measurement 1", "bytes": 3, "step": "measure#2"},
        {**last, "bytes": len(text), "step": "artifact"},
    ]
    assert [await app.artifact(task.id, ref["artifact_id"]) for ref in refs] == [bytes(3), b"\1\1\1", text.encode()]
    other = await app.submit(report, 1)
    with pytest.raises(ArtifactNotFound, match=f"task {other.id} has no artifact '{first}'; it has none so far"):
        await app.artifact(other.id, first)
    with pytest.raises(TaskNotFound):
        await app.artifacts("nothing")


async def test_a_plain_handler_and_one_without_a_state(app: Onward) -> None:
    @app.task
    def plain(ctx: Any, text: str) -> str:
        return str(ctx.read_artifact(ctx.artifact(text)).decode())

    async with app.worker():
        task = await app.submit(plain, "kept\0")
        assert await task.result(timeout=60) == "kept\0"
    (ref,) = await app.artifacts(task.id)
    assert (ref.bytes, ref.step, ref.type) == (5, "artifact", "text")


@in_one_database
async def test_an_artifact_that_is_too_large_is_refused_where_it_is_left(app: Onward) -> None:
    @app.task(retry=1)
    async def greedy(ctx: Any) -> str:
        async def make() -> None:
            await ctx.artifact(bytes(MAX_ARTIFACT_BYTES + 1))

        with pytest.raises(ArtifactTooLarge):
            await ctx.artifact(bytes(MAX_ARTIFACT_BYTES + 1))
        with pytest.raises(
            StepFailed, match="once and failed: ArtifactTooLarge: an artifact may have 100,000,000 bytes"
        ):
            await ctx.step(make, retry=3)
        return "refused"

    async with app.worker():
        assert await (await app.submit(greedy)).result(timeout=60) == "refused"


async def test_a_fork_has_what_came_before_it_and_outlives_its_origin(app: Onward) -> None:
    @app.task
    async def two(ctx: Any) -> str:
        first = await ctx.artifact("first")
        await ctx.artifact("second")
        return str((await ctx.read_artifact(first)).decode())

    async with app.worker():
        origin = await app.submit(two)
        await origin.result(timeout=60)
        at = next(one.seq for one in await app.service.journal(origin.id) if one.kind == r.STEP_DONE)
    fork = await app.fork(origin.id, at)
    first, second = await app.artifacts(origin.id)
    await app.service.artifacts.drop(origin.id)
    assert await app.artifacts(fork.id) == [first]
    assert await app.artifact(fork.id, first.artifact_id) == b"first"
    with pytest.raises(ArtifactNotFound):
        await app.artifact(fork.id, second.artifact_id)
    async with app.worker():
        assert await fork.result(timeout=60) == "first"
    assert len(await app.artifacts(fork.id)) == 2


# ── crashes and outages ──────────────────────────────────────────────────────────────────────────────────────────────


class Auditor:
    """Looks at every commit before it is made: what its records tell of must be there already."""

    def __init__(self, app: Any) -> None:
        self._app, self._save = app, app.store.save
        self.missing: list[str] = []
        self.seen = 0
        app.store.save = self.save

    async def save(self, worker: str, batch: Any) -> Any:
        for task_id, _, _, kind, _, data, _ in batch.entries:
            if kind == r.ARTIFACT:
                self.seen += 1
                try:
                    await self._app.service.artifacts.get(task_id, wire.decode(data)["artifact_id"])
                except ArtifactNotFound as lost:
                    self.missing.append(str(lost))
        return await self._save(worker, batch)


@pytest.mark.slow
@pytest.mark.alone  # rclone replaces an object in two steps: a put that outlives its worker, on a busy machine, hides it for a moment
@in_one_database
async def test_killed_anywhere_nothing_that_was_told_of_is_missing(place: str) -> None:
    points = seen = 0
    async for app in crashes(artifacts=place):
        audit = Auditor(app)
        task = await app.submit(reporter(app), 2)
        await drain(app)
        assert len(await task.result(timeout=1)) == 3, app.killed_at
        assert audit.missing == []
        assert len(await app.artifacts(task.id)) == 3
        points, seen = points + 1, seen + audit.seen
    assert points > 12
    assert seen >= 3 * points


@in_one_database
async def test_the_auditor_finds_a_keeper_that_is_late(place: str) -> None:
    """The proof that the test above looks: here the bytes come after the record."""
    app = memory_app(artifacts=place)
    async with app:
        keeper, late = app.service.artifacts, list[Any]()
        put = keeper.put

        async def put_later(task_id: str, data: bytes) -> str:
            late.append((task_id, data))
            return wire.content_id(data)

        keeper.put = put_later  # type: ignore[method-assign]
        audit = Auditor(app)

        @app.task
        async def hasty(ctx: Any) -> str:
            await ctx.artifact("late")
            return "done"

        await app.submit(hasty)
        await drain(app)
        for pair in late:
            await put(*pair)
    assert len(audit.missing) == 1


@pytest.mark.slow
@only_s3
async def test_a_task_waits_for_a_bucket_that_is_away_and_an_effect_is_not_repeated(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = Rclone(BUCKET)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    app = Onward(url, artifacts=f"s3://{BUCKET}", poll_s=0.05)
    done: list[int] = []

    @app.task
    async def once(ctx: Any) -> str:
        async def pay() -> str:
            done.append(1)
            return str((await ctx.artifact("receipt")).artifact_id)

        return str(await ctx.step(pay, effect="once"))

    try:
        async with app, app.worker():
            task = await app.submit(once)

            async def complains() -> bool:
                return "the store does not answer, trying again: artifacts cannot be written" in caplog.text

            await eventually(complains)
            server.start()
            name = await task.result(timeout=60)
            assert await app.artifact(task.id, name) == b"receipt"
        assert done == [1]
    finally:
        server.close()


@only_s3
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "privileges.*check the endpoint, the bucket and the keys"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "HTTP error.*AWS_ENDPOINT_URL"),
        ({}, "bucket 'nothing': it does not exist; check"),
    ],
)
async def test_what_is_wrong_with_a_bucket_is_said(
    s3: Rclone, store: Store, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], sentence: str
) -> None:
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    kept = Artifacts(store, open_shelf(f"s3://{BUCKET if change else 'nothing'}"))
    with pytest.raises(StoreUnavailable, match=sentence):
        await kept.put(next_id(), b"x")
    with pytest.raises(StoreUnavailable, match="cannot be read from the bucket"):
        await kept.get(next_id(), "a" * 32)


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", ["directory"], indirect=True)
async def test_what_is_in_the_database_stays_readable_when_a_shelf_is_put_up(
    url: str, place: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'both.db'}"
    before = Onward(url)
    reporter(before)
    async with before.worker():
        task = await before.submit("report", 1)
        await task.result(timeout=60)
    async with Onward(url, artifacts=place) as after:
        refs = await after.artifacts(task.id)
        assert await after.artifact(task.id, refs[0].artifact_id) == bytes(3)


@pytest.mark.parametrize(
    "wrong", ["databse", "", "s3://", "s3:///prefix", "file://relative", "gs://bucket", "http://x/y"]
)
def test_a_place_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(BadSetting, match=r"artifacts is .* but must be 'database', a folder"):
        Onward("sqlite://:memory:", artifacts=wrong)


def test_without_obstore_a_bucket_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadSetting, match="pip install 'onward\\[s3\\]'"):
        Onward("sqlite://:memory:", artifacts="s3://bucket")


async def test_an_app_in_memory_keeps_nothing_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONWARD_ARTIFACTS", str(tmp_path / "not here"))
    app = memory_app()
    reporter(app)
    async with app:
        task = await app.submit("report", 1)
        await drain(app)
        assert len(await task.result(timeout=1)) == 2
    assert files(tmp_path) == []
