"""Backups and restores on both databases: all of one moment, verified, in a new epoch."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import json
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import psycopg
import pytest

from onward import Onward
from onward.app import backup
from onward.app.application import VERSION
from onward.app.connect import open_shelf
from onward.artifacts.keeper import Shelf
from onward.core import record as r
from onward.core.epoch import FIRST, lost_at
from onward.core.event import event
from onward.core.task import State
from onward.errors import BackupDamaged, DiskFull, EpochEnded, StoreUnavailable, UsageError
from onward.store import migrate
from onward.store.port.outbox import DELIVERED, Settled, Taken
from onward.store.sqlite.backup import SqliteBackups
from rig.postgres import Postgres
from tests.kit import new, not_memory, only_file, only_postgres, row, sql

WAIT_S = 60.0
"""Seconds for a real worker on a slow machine."""


SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def other_url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """One more database without a table in it."""
    if kind != "postgres":
        yield f"sqlite:///{tmp_path / 'other.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    yield server.database("other")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS other WITH (FORCE)")


def make_app(url: str, **settings: Any) -> Onward:
    return Onward(url, **{"lease_s": 0.5, "heartbeat_s": 0.1, "poll_s": 0.05, "grace_s": 1.0, "slots": 10} | settings)


@contextlib.asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Onward]:
    app = make_app(url, **settings)
    async with app:
        yield app


async def back_up(url: str, folder: Path, shelf: Shelf | None = None) -> backup.Manifest:
    app = make_app(url)
    return await backup.back_up(
        app.store.backups, shelf, folder, where=app.store.where, version=VERSION, tell=lambda _: None
    )


async def restore(
    url: str, folder: Path, *, overwrite: bool = False, shelf: Shelf | None = None, lease_s: float = 0.0
) -> backup.Restored:
    return await backup.restore(
        make_app(url).store.backups, shelf, folder, overwrite=overwrite, lease_s=lease_s, tell=lambda _: None
    )


async def until(fact: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await fact():  # noqa: ASYNC110 -- of another process
            await asyncio.sleep(0.02)


# ── what is in a backup ──────────────────────────────────────────────────────────────────────────────────────────────


@not_memory
async def test_all_that_was_acknowledged_before_the_backup_is_in_it(
    fresh_url: str, other_url: str, tmp_path: Path
) -> None:
    """Submits go on while the backup is made."""
    acknowledged: list[str] = []
    async with opened(fresh_url) as app:

        async def load() -> None:
            while True:
                acknowledged.extend(task.id for task in await app.store.submit([new()]))

        loading = asyncio.ensure_future(load())
        await until(lambda: _true(len(acknowledged) > 50))
        before = list(acknowledged)
        manifest = await back_up(fresh_url, tmp_path / "copy")
        loading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loading
    assert manifest.tables.counts["tasks"] >= len(before)
    await restore(other_url, tmp_path / "copy")
    async with opened(other_url) as app:
        ids = {row[0] for row in await sql(app.store, "SELECT id FROM onward_tasks")}
        assert set(before) <= ids
        assert len(ids) == manifest.tables.counts["tasks"]
        for table in ("onward_queue", "onward_journal WHERE seq = 1"):
            assert (await sql(app.store, f"SELECT count(*) FROM {table}"))[0][0] == len(ids)
        assert await app.store.health.census() == []
        assert app.store.epoch.number == 1


async def _true(value: bool) -> bool:
    return value


@not_memory
async def test_every_table_comes_back_as_it_was(fresh_url: str, other_url: str, tmp_path: Path) -> None:
    names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'onward%'"
    if fresh_url.startswith("postgres"):
        names = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'onward%'"
    changed = {"onward_epochs", "onward_lock_counters", "onward_journal", "onward_workers"}

    async with opened(fresh_url, webhook_secret=SECRET) as app:

        @app.task
        async def work(ctx: Any, n: int) -> bytes:
            await ctx.artifact(b"\x00\xff" * 100, summary="bytes")
            return str(n).encode()

        app.schedule("nightly", work, 1, cron="0 3 * * *")
        async with app.worker():
            handle = await app.submit(work, 3, key="k", labels={"a": "ü"})
            await handle.result(timeout=WAIT_S)
        await app.service.subscriptions.make("https://example.com/hook", ["*"])
        tables = sorted(row[0] for row in await sql(app.store, names))
        before = {table: await sql(app.store, f"SELECT * FROM {table}") for table in tables}
    await back_up(fresh_url, tmp_path / "copy")
    await restore(other_url, tmp_path / "copy")
    async with opened(other_url) as app:
        assert sorted(row[0] for row in await sql(app.store, names)) == tables
        for table in set(tables) - changed:
            assert sorted(map(repr, await sql(app.store, f"SELECT * FROM {table}"))) == sorted(
                map(repr, before[table])
            ), table
        await app.store.submit([new()])  # identity columns go on


@not_memory
async def test_artifacts_outside_of_the_database_come_along(fresh_url: str, other_url: str, tmp_path: Path) -> None:
    place = str(tmp_path / "shelf")
    async with opened(fresh_url, artifacts=place) as app:

        @app.task
        async def draw(ctx: Any) -> str:
            return (await ctx.artifact(b"\x89PNG", summary="a picture")).artifact_id

        async with app.worker():
            handle = await app.submit(draw)
            name = await handle.result(timeout=WAIT_S)
    manifest = await back_up(fresh_url, tmp_path / "copy", open_shelf(place))
    assert manifest.artifacts == {"count": 1, "bytes": 4}
    shutil.rmtree(place)
    with pytest.raises(UsageError, match="set ONWARD_ARTIFACTS"):
        await restore(other_url, tmp_path / "copy")
    await restore(other_url, tmp_path / "copy", shelf=open_shelf(str(tmp_path / "new shelf")))
    async with opened(other_url, artifacts=str(tmp_path / "new shelf")) as app:
        assert await app.artifact(handle.id, name) == b"\x89PNG"


@not_memory
async def test_an_artifact_that_is_pruned_during_the_backup_is_in_it(fresh_url: str, tmp_path: Path) -> None:
    shelf = open_shelf(str(tmp_path / "shelf"))
    assert shelf is not None
    app = make_app(fresh_url)
    task = new()
    async with app:
        await app.store.submit([task])
    shelf.put(task.id, "0" * 32, b"early")

    class Pruned:
        kind = app.store.backups.kind

        async def write(self, folder: Path, tell: Any) -> Any:
            shelf.drop(task.id)
            shelf.put(task.id, "1" * 32, b"late")
            return await app.store.backups.write(folder, tell)

    pruned: Any = Pruned()
    manifest = await backup.back_up(
        pruned, shelf, tmp_path / "copy", where="here", version=VERSION, tell=lambda _: None
    )
    assert manifest.artifacts == {"count": 2, "bytes": 9}


@not_memory
async def test_artifacts_that_an_old_worker_prunes_during_the_restore_come_back(
    fresh_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "shelf")
    shelf = open_shelf(place)
    assert shelf is not None
    task = new()
    async with opened(fresh_url) as app:
        await app.store.submit([task])
        shelf.put(task.id, "0" * 32, b"kept")
        await back_up(fresh_url, tmp_path / "copy", shelf)
        kind: Any = type(app.store.backups)
        restore_tables = kind.restore

    async def slow(backups: Any, *args: Any) -> Any:
        shelf.drop(task.id)
        return await restore_tables(backups, *args)

    monkeypatch.setattr(kind, "restore", slow)
    await restore(fresh_url, tmp_path / "copy", overwrite=True, shelf=shelf)
    assert shelf.get(task.id, "0" * 32) == b"kept"


# ── whole or not at all ──────────────────────────────────────────────────────────────────────────────────────────────


@not_memory
async def test_an_interrupted_backup_has_another_name_and_is_refused(fresh_url: str, tmp_path: Path) -> None:
    app = make_app(fresh_url)
    async with app:
        await app.store.submit([new()])

    class Killed:
        kind = app.store.backups.kind
        partial: Path | None = None

        async def write(self, folder: Path, tell: Any) -> Any:
            await app.store.backups.write(folder, tell)
            shutil.copytree(folder, tmp_path / "left behind")  # as after a power cut
            raise KeyboardInterrupt

    killed: Any = Killed()
    with pytest.raises(KeyboardInterrupt):
        await backup.back_up(killed, None, tmp_path / "copy", where="", version=VERSION, tell=lambda _: None)
    assert not (tmp_path / "copy").exists()
    assert [path.name for path in tmp_path.glob("copy*")] == []  # noqa: ASYNC240
    with pytest.raises(BackupDamaged, match="no manifest"):
        await restore(fresh_url, tmp_path / "left behind", overwrite=True)


@not_memory
async def test_a_changed_backup_is_refused_and_nothing_is_touched(fresh_url: str, tmp_path: Path) -> None:
    app = make_app(fresh_url)
    async with app:
        (task,) = await app.store.submit([new()])
    await back_up(fresh_url, tmp_path / "copy")
    manifest = json.loads((tmp_path / "copy" / "manifest.json").read_text())
    for name in [*manifest["files"], "manifest.json"]:
        broken = tmp_path / "broken"
        shutil.copytree(tmp_path / "copy", broken)
        data = bytearray((broken / name).read_bytes())
        data[len(data) // 2] ^= 1
        (broken / name).write_bytes(data)
        with pytest.raises(BackupDamaged):
            await restore(fresh_url, broken, overwrite=True)
        shutil.rmtree(broken)
    async with app:
        assert app.store.epoch == FIRST
        assert await app.store.get(task.id) is not None


@not_memory
async def test_a_database_with_tasks_is_replaced_only_on_demand(fresh_url: str, tmp_path: Path) -> None:
    async with opened(fresh_url) as app:
        (kept,) = await app.store.submit([new()])
    await back_up(fresh_url, tmp_path / "copy")
    with pytest.raises(UsageError, match="exists already"):
        await back_up(fresh_url, tmp_path / "copy")
    async with opened(fresh_url) as app:
        (later,) = await app.store.submit([new()])
    with pytest.raises(UsageError, match="--overwrite"):
        await restore(fresh_url, tmp_path / "copy")
    await restore(fresh_url, tmp_path / "copy", overwrite=True)
    await restore(fresh_url, tmp_path / "copy", overwrite=True)
    async with opened(fresh_url) as app:
        assert await app.store.get(kept.id) is not None
        assert await app.store.get(later.id) is None
        assert app.store.epoch.number == 2
        assert len(await app.store.journal(kept.id)) == 2


@not_memory
async def test_a_backup_of_a_newer_program_is_refused(fresh_url: str, tmp_path: Path) -> None:
    async with opened(fresh_url):
        pass
    await back_up(fresh_url, tmp_path / "copy")
    manifest = backup.read_manifest(tmp_path / "copy")
    newer = manifest._replace(tables=manifest.tables._replace(migrations=[*manifest.tables.migrations, 999]))
    (tmp_path / "copy" / "manifest.json").unlink()
    backup._write_manifest(tmp_path / "copy", newer)
    with pytest.raises(UsageError, match="table version 999"):
        await restore(fresh_url, tmp_path / "copy", overwrite=True)


@only_file
@pytest.mark.parametrize("from_byte", [0, 4096])
def test_a_damaged_file_is_not_replaced_in_place(fresh_url: str, tmp_path: Path, from_byte: int) -> None:
    async def make() -> None:
        async with opened(fresh_url) as app:
            await app.store.submit([new()])
        await back_up(fresh_url, tmp_path / "copy")

    asyncio.run(make())
    path = Path(fresh_url.removeprefix("sqlite:///"))
    data = path.read_bytes()
    path.write_bytes(data[:from_byte] + b"\xaa" * (len(data) - from_byte))
    with pytest.raises(StoreUnavailable, match="move it away"):
        asyncio.run(restore(fresh_url, tmp_path / "copy", overwrite=True))
    path.rename(tmp_path / "damaged.db")
    asyncio.run(restore(fresh_url, tmp_path / "copy", overwrite=True))


@not_memory
async def test_a_manifest_names_no_other_tables_than_ours(fresh_url: str, tmp_path: Path) -> None:
    """It may come from elsewhere, and its names become SQL and paths."""
    async with opened(fresh_url) as app:
        (kept,) = await app.store.submit([new()])
    manifest = await back_up(fresh_url, tmp_path / "copy")
    if manifest.kind == "sqlite":
        return  # no name of a table is in it
    for name in ("onward_tasks; DROP TABLE onward_queue", "../../secret", "pg_authid", "onward_nothing"):
        tables = [*manifest.tables.details["tables"], {"name": name, "columns": ["a"], "rows": 0}]
        forged = manifest._replace(tables=manifest.tables._replace(details={"tables": tables, "triggers": []}))
        (tmp_path / "copy" / "manifest.json").unlink()
        backup._write_manifest(tmp_path / "copy", forged)
        with pytest.raises(BackupDamaged):
            await restore(fresh_url, tmp_path / "copy", overwrite=True)
    async with opened(fresh_url) as app:
        assert await app.store.get(kept.id) is not None


@not_memory
@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no room left to write to the backup"),
        (PermissionError(errno.EACCES, "Permission denied", "manifest.json"), "check the folder and its permissions"),
        (DiskFull("SQLite file x.db"), "no room left to write to the backup"),
    ],
)
async def test_a_backup_that_cannot_be_written_says_where(
    fresh_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    """The database is only read: it is not its disk that is full."""
    async with opened(fresh_url):
        pass

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(backup, "_write_manifest", fail)
    with pytest.raises(StoreUnavailable, match=sentence):
        await back_up(fresh_url, tmp_path / "copy")
    assert list(tmp_path.glob("copy*")) == []  # noqa: ASYNC240


@only_file
async def test_a_restore_without_room_changes_nothing(
    fresh_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(fresh_url) as app:
        (task,) = await app.store.submit([new()])
    await back_up(fresh_url, tmp_path / "copy")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("onward.store.sqlite.backup._copy_file", fail)
    async with opened(fresh_url) as app:
        with pytest.raises(DiskFull):
            await restore(fresh_url, tmp_path / "copy", overwrite=True)
        await app.store.cancel(task.id)  # its processes go on


@only_file
async def test_a_restore_that_fails_after_it_has_stopped_the_others_says_so(
    fresh_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(fresh_url) as app:
        (task,) = await app.store.submit([new()])
    await back_up(fresh_url, tmp_path / "copy")

    async def fail(*_: Any) -> None:
        raise DiskFull("the disk")

    monkeypatch.setattr(SqliteBackups, "_begin", fail)
    told: list[str] = []
    async with opened(fresh_url) as old:
        with pytest.raises(DiskFull):
            await backup.restore(
                make_app(fresh_url).store.backups,
                None,
                tmp_path / "copy",
                overwrite=True,
                lease_s=0.0,
                tell=lambda progress: told.append(progress.part),
            )
        with pytest.raises(EpochEnded):
            await old.store.cancel(task.id)
    assert "restart the workers" in told[-1]
    async with opened(fresh_url) as app:
        assert await app.store.get(task.id) is not None


OLD_TASK = (
    "INSERT INTO onward_tasks (id, task, queue, priority, created_at, fingerprint, input, options) "
    "VALUES ('0000000000000000000000000a', 'work', 'default', 0, 1, '', '{0}', '{0}')",
    "INSERT INTO onward_queue (task_id, queue, task, priority, reason) VALUES ('0000000000000000000000000a', 'default', 'work', 0, 'queued')",
    "INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) "
    "VALUES ('0000000000000000000000000a', 1, 0, 'task.submitted', '', '{0}', 1)",
)


async def _make_older(url: str, newest: int) -> None:
    """Tables of an older version, with a task."""
    statements = [migrate.TABLES]
    for migration in migrate.load("sqlite" if url.startswith("sqlite") else "postgres"):
        if migration.number <= newest:
            statements.append(migration.whole)
            statements.append(
                f"INSERT INTO onward_migrations VALUES ({migration.number}, '{migration.name}', '{migration.checksum}')"
            )
    if url.startswith("sqlite"):
        file = apsw.Connection(url.removeprefix("sqlite:///"))
        file.create_scalar_function("onward_now", lambda *_: 1.0, 0)
        file.execute(";".join([*statements, *OLD_TASK]).replace("'{0}'", "X'7b7d'"))
        file.close()
        return
    connection = await asyncpg.connect(url)
    for statement in [*statements, *OLD_TASK]:
        await connection.execute(statement.replace("{0}", "{}"))
    await connection.close()


@not_memory
@pytest.mark.parametrize("newest", [1, 7, 19])
async def test_a_backup_of_older_tables_is_restored_and_migrated(
    fresh_url: str, other_url: str, tmp_path: Path, newest: int
) -> None:
    await _make_older(fresh_url, newest)
    manifest = await back_up(fresh_url, tmp_path / "copy")
    assert manifest.tables.migrations == list(range(1, newest + 1))
    for url in (other_url, fresh_url):
        await restore(url, tmp_path / "copy", overwrite=True)
        async with opened(url) as app:
            assert [record.kind for record in await app.store.journal("0000000000000000000000000a")] == [
                r.SUBMITTED,
                r.RESTORED,
            ]
            assert await app.store.health.census() == []
            await app.store.submit([new()])


# ── the epoch ────────────────────────────────────────────────────────────────────────────────────────────────────────


@not_memory
async def test_a_process_from_before_the_restore_cannot_write(fresh_url: str, tmp_path: Path) -> None:
    async with opened(fresh_url) as old:
        (task,) = await old.store.submit([new()])
        await back_up(fresh_url, tmp_path / "copy")
        await restore(fresh_url, tmp_path / "copy", overwrite=True)
        before = await old.store.journal(task.id)
        clone = old.store.clone()
        await clone.open(migrate=False)
        for store in (old.store, clone):
            with pytest.raises(EpochEnded, match="Restart it"):
                await store.submit([new()])
            with pytest.raises(EpochEnded):
                await store.workers.join(row("w"), 1.0)
            with pytest.raises(EpochEnded):
                await store.workers.heartbeat("w", 1.0, 0.0)
            with pytest.raises(EpochEnded):
                await store.claim("w", "default", ["work"], 1)
            with pytest.raises(EpochEnded):
                await store.cancel(task.id)
            with pytest.raises(EpochEnded):  # `/readyz` asks for it
                await store.version()
        if clone is not old.store:
            await clone.close()
        assert await old.store.journal(task.id) == before
        async with opened(fresh_url) as fresh:
            await fresh.store.submit([new()])
            assert (await fresh.store.get(task.id)) is not None


@not_memory
async def test_a_submit_in_a_transaction_of_the_caller_is_refused_too(fresh_url: str, tmp_path: Path) -> None:
    async with opened(fresh_url) as old:
        await back_up(fresh_url, tmp_path / "copy")
        await restore(fresh_url, tmp_path / "copy", overwrite=True)
        if fresh_url.startswith("postgres"):
            connection = await asyncpg.connect(fresh_url)
            transaction = connection.transaction()
            await transaction.start()
            with pytest.raises(EpochEnded):
                await old.store.submit([new()], connection)
            await transaction.rollback()
            await connection.close()
        else:
            own = apsw.Connection(fresh_url.removeprefix("sqlite:///"))
            own.execute("BEGIN IMMEDIATE")
            with pytest.raises(EpochEnded):
                await old.store.submit([new()], own)
            own.execute("ROLLBACK")
            own.close()


@not_memory
async def test_tokens_of_locks_never_go_back(fresh_url: str, tmp_path: Path) -> None:
    async with opened(fresh_url) as app:
        async with app.lock("printer") as lock:
            first = lock.token
        await back_up(fresh_url, tmp_path / "copy")
        async with app.lock("printer") as lock:
            lost = lock.token
    await restore(fresh_url, tmp_path / "copy", overwrite=True)
    async with opened(fresh_url) as app, app.lock("printer") as lock:
        assert first < lost < lock.token


@not_memory
async def test_tokens_of_locks_do_not_go_back_when_a_backup_is_restored_twice(
    fresh_url: str, other_url: str, tmp_path: Path
) -> None:
    """Also not in a place that does not know of the restore before."""
    tokens: list[int] = []
    async with opened(fresh_url) as app, app.lock("printer") as lock:
        tokens.append(lock.token)
    await back_up(fresh_url, tmp_path / "copy")
    for url in (fresh_url, fresh_url, other_url):
        await restore(url, tmp_path / "copy", overwrite=True)
        async with opened(url) as app:
            for _ in range(3):
                async with app.lock("printer") as lock:
                    tokens.append(lock.token)
    assert tokens == sorted(set(tokens))


@not_memory
async def test_events_after_each_restore_of_a_backup_have_ids_of_their_own(
    fresh_url: str, other_url: str, tmp_path: Path
) -> None:
    """The records of one number are other ones each time. Before the backup no id changes."""
    told: list[str] = []
    async with opened(fresh_url, webhook_secret=SECRET) as app:
        await app.service.subscriptions.make("https://example.com/hook", ["*"])
        (task,) = await app.store.submit([new()])
    await back_up(fresh_url, tmp_path / "copy")
    for url in (fresh_url, fresh_url, other_url):
        await restore(url, tmp_path / "copy", overwrite=True)
        async with opened(url, webhook_secret=SECRET) as app:
            await app.store.cancel(task.id)
            rows = {row.record.kind: row async for row in _outgoing(app)}
            told.append(rows[r.CANCELLED].id)
            assert event(task.id, rows[r.CANCELLED].record, r.CANCELLED, rows[r.CANCELLED].origin).id != f"{task.id}.4"
            assert rows[r.SUBMITTED].id == str(rows[r.SUBMITTED].key), "sent before the backup, perhaps"
    assert len(set(told)) == 3, told


async def _outgoing(app: Onward) -> AsyncIterator[Taken]:
    """All that a relay would send, in its order."""
    outbox = app.store.outbox
    lanes = await outbox.lanes()
    assert lanes is not None
    while taken := await outbox.take(lanes[0].name, 100, "me", 60.0):
        for event_ in taken:
            yield event_
        await outbox.settle("me", [Settled(one.key, one.attempts, DELIVERED, 0.0, "") for one in taken])


@not_memory
async def test_a_living_worker_is_fenced_and_a_new_one_goes_on(fresh_url: str, tmp_path: Path) -> None:
    """The old worker is in the middle of a step when the database is put back."""
    done: list[str] = []

    def handlers(app: Onward, name: str) -> None:
        @app.task
        async def work(ctx: Any) -> str:
            await ctx.step(lambda: done.append(f"{name} first"), name="first")
            await ctx.step(slow, name="slow")
            return name

        async def slow() -> None:
            done.append(f"{name} slow")
            await asyncio.sleep(0 if name == "new" else 2.0)

    old, fresh = make_app(fresh_url), make_app(fresh_url)
    handlers(old, "old")
    handlers(fresh, "new")
    async with old, old.worker():
        handle = await old.submit("work")
        await until(lambda: _true("old slow" in done))
        await back_up(fresh_url, tmp_path / "copy")
        await restore(fresh_url, tmp_path / "copy", overwrite=True, lease_s=0.5)
        async with fresh, fresh.worker():
            assert await fresh.handle(handle.id).result(timeout=WAIT_S) == "new"
            kinds = [record.kind for record in await fresh.service.journal(handle.id)]
            await asyncio.sleep(0.5)
            assert [record.kind for record in await fresh.service.journal(handle.id)] == kinds
    assert kinds.count(r.RESTORED) == 1
    assert done == ["old first", "old slow", "new slow"]


@only_file
async def test_the_lost_time_lasts_until_no_earlier_process_can_write(
    fresh_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick that an old worker fires while the file is prepared may have had effects."""
    migrate, written_at = SqliteBackups._migrate, [0.0]
    async with opened(fresh_url) as old:
        await back_up(fresh_url, tmp_path / "copy")

        async def slow(backups: Any, path: Path) -> None:
            await migrate(backups, path)
            await asyncio.sleep(0.2)
            (task,) = await old.store.submit([new()])
            written_at[0] = (await old.store.journal(task.id))[0].at

        monkeypatch.setattr(SqliteBackups, "_migrate", slow)
        restored = await restore(fresh_url, tmp_path / "copy", overwrite=True)
        assert lost_at(restored.epoch, written_at[0]) is not None
    async with opened(fresh_url) as app:
        assert app.store.epoch == restored.epoch


@only_file
async def test_a_worker_that_starts_during_the_restore_is_waited_for(fresh_url: str, tmp_path: Path) -> None:
    async with opened(fresh_url) as app:
        await app.store.submit([new()])
    await back_up(fresh_url, tmp_path / "copy")
    restoring = asyncio.ensure_future(restore(fresh_url, tmp_path / "copy", overwrite=True, lease_s=1.0))
    await asyncio.sleep(0.6)
    assert not restoring.done()
    async with opened(fresh_url) as late:
        joined_at = time.monotonic()
        await late.store.workers.join(row("late"), 3.0)
        await restoring
        assert time.monotonic() - joined_at >= 2.9
        with pytest.raises(EpochEnded):
            await late.store.submit([new()])


@only_file
async def test_a_worker_that_starts_at_the_last_moment_stops_the_restore(
    fresh_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(fresh_url) as app:
        await app.store.submit([new()])
    await back_up(fresh_url, tmp_path / "copy")
    async with opened(fresh_url) as app:
        (later,) = await app.store.submit([new()])

    async def careless(*_: Any) -> None:
        async with opened(fresh_url) as late:
            await late.store.workers.join(row("late"), 30.0)

    monkeypatch.setattr(SqliteBackups, "_quieten", careless)
    with pytest.raises(StoreUnavailable, match="stop them"):
        await restore(fresh_url, tmp_path / "copy", overwrite=True)
    async with opened(fresh_url) as app:
        assert await app.store.get(later.id) is not None


@only_file
async def test_a_prepared_file_without_its_epoch_is_not_put_in_place(
    fresh_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its log could not be copied into it."""
    async with opened(fresh_url) as app:
        (kept,) = await app.store.submit([new()])
    await back_up(fresh_url, tmp_path / "copy")

    async def nothing(*_: Any) -> None: ...

    monkeypatch.setattr(SqliteBackups, "_begin", nothing)
    for url in (fresh_url, f"sqlite:///{tmp_path / 'new.db'}"):
        with pytest.raises(StoreUnavailable, match="epoch"):
            await restore(url, tmp_path / "copy", overwrite=True)
    assert not (tmp_path / "new.db").exists()
    async with opened(fresh_url) as app:
        assert await app.store.get(kept.id) is not None


@only_postgres
async def test_without_a_restore_no_table_has_a_trigger_for_epochs(fresh_url: str, tmp_path: Path) -> None:
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgname = 'onward_epoch'"
    async with opened(fresh_url) as app:
        assert await sql(app.store, triggers) == [(0,)]
    await back_up(fresh_url, tmp_path / "copy")
    await restore(fresh_url, tmp_path / "copy", overwrite=True)
    async with opened(fresh_url) as app:
        assert (await sql(app.store, triggers))[0][0] > 20
        await app.store.submit([new()])


@only_postgres
async def test_roles_stay_after_a_restore(fresh_url: str, tmp_path: Path) -> None:
    policies = "SELECT tablename, policyname, roles::text, qual FROM pg_policies ORDER BY 1, 2"
    async with opened(fresh_url) as app:
        await app.store.migrate(roles="kept")
        before = await sql(app.store, policies)
    await back_up(fresh_url, tmp_path / "copy")
    await restore(fresh_url, tmp_path / "copy", overwrite=True)
    async with opened(fresh_url) as app:
        assert before
        assert await sql(app.store, policies) == before


@not_memory
async def test_a_database_that_was_put_back_by_other_means(fresh_url: str, tmp_path: Path) -> None:
    async with opened(fresh_url) as old:
        (task,) = await old.store.submit([new()])
        store = make_app(fresh_url).store.backups
        restored = await backup.begin_epoch(store, lease_s=0.0, tell=lambda _: None)
        assert restored.epoch.own_tables
        with pytest.raises(EpochEnded):
            await old.store.submit([new()])
    async with opened(fresh_url) as app:
        records = await app.store.journal(task.id)
        assert [record.kind for record in records] == [r.SUBMITTED, r.RESTORED]
        assert app.store.epoch.backup_at == pytest.approx(records[0].at)
        assert app.store.epoch == restored.epoch


@only_file
async def test_a_log_that_is_left_of_another_file_is_named(fresh_url: str, tmp_path: Path) -> None:
    async with opened(fresh_url):
        pass
    await back_up(fresh_url, tmp_path / "copy")
    (tmp_path / "new.db-wal").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"new\.db-wal"):
        await restore(f"sqlite:///{tmp_path / 'new.db'}", tmp_path / "copy")


@not_memory
async def test_finished_tasks_are_left_alone(fresh_url: str, tmp_path: Path) -> None:
    async with opened(fresh_url) as app:

        @app.task
        async def work(ctx: Any) -> int:
            return 7

        async with app.worker():
            handle = await app.submit(work)
            await handle.result(timeout=WAIT_S)
            records = await app.service.journal(handle.id)
    await back_up(fresh_url, tmp_path / "copy")
    await restore(fresh_url, tmp_path / "copy", overwrite=True)
    async with opened(fresh_url) as app:
        assert await app.service.journal(handle.id) == records
        assert (await app.get(handle.id)).state is State.COMPLETED
