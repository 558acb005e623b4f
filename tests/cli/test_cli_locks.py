"""locks: list, release."""

from __future__ import annotations

import asyncio

from onward import Onward
from onward.core.lock import LockRequest
from tests.cli.conftest import Run


async def _held(db: str) -> None:
    async with Onward(db) as app:
        for owner in ("first", "second"):
            await app.store.locks.take(LockRequest("", "deploy:web", owner, f"host:{owner}", ttl_s=600.0))
        await app.store.locks.take(LockRequest("acme", "deploy:web", "third", "host:third", ttl_s=600.0))


def test_holders_and_waiters_are_listed_and_a_lock_is_released(onward: Run, db: str) -> None:
    assert "no lock is held" in onward("locks", "--db", db).err + onward("locks", "--db", db).out
    asyncio.run(_held(db))
    header, first, second = onward("locks", "--db", db).out.splitlines()
    assert header.split() == ["LOCK", "TENANT", "TOKEN", "HOLDER", "SINCE", "WAITING", "NEXT", "COORDINATOR"]
    assert first.split()[:4] == ["deploy:web", "–", "1", "host:first"]
    assert "1 waiter" in first
    assert second.split()[:2] == ["deploy:web", "acme"]
    listed = onward("locks", "list", "--db", db, "--json").json["locks"]
    assert [lock["holder"]["holder"] for lock in listed] == ["host:first", "host:third"]
    assert [waiter["holder"] for waiter in listed[0]["waiters"]] == ["host:second"]
    released = onward("locks", "release", "deploy:web", "--reason", "it hangs", "--tenant", "acme", "--db", db)
    assert released.status == 0
    assert "host:third" in released.out
    (entry,) = onward("audit", "--db", db, "--json").json["entries"]
    assert (entry["action"], entry["subject"], entry["tenant"]) == ("release_lock", "deploy:web", "acme")
    assert entry["data"]["reason"] == "it hangs"


def test_a_lock_that_no_one_holds_is_not_found(onward: Run, db: str) -> None:
    onward("locks", "--db", db)
    asyncio.run(_held(db))
    missing = onward("locks", "release", "other", "--reason", "it hangs", "--db", db)
    assert (missing.status != 0, "no one holds a lock 'other'" in missing.sentence) == (True, True)
    unsaid = onward("locks", "release", "deploy:web", "--reason", " ", "--db", db)
    assert (unsaid.status, "give a reason" in unsaid.sentence) == (2, True)
