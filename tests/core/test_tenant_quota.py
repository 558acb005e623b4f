"""The values of quotas, the groups by which tenants get their turns, and buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.config import load
from onward.core.rate import Bucket
from onward.core.tenant_quota import NAMES, TURN_LANES, TenantQuota, turn_group, turn_groups
from onward.errors import BadSetting


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket, now = Bucket(), 100.0
    for _ in range(4):
        assert bucket.wait(now, 2, 4) == 0
        bucket.take(now, 2)
    assert bucket.wait(now, 2, 4) == pytest.approx(0.5)
    assert (bucket.remaining(now, 2, 4), bucket.full_in(now)) == (0, 2.0)
    assert bucket.wait(now + 0.5, 2, 4) == 0
    assert bucket.remaining(now + 60, 2, 4) == 4


def test_a_bucket_may_owe_tokens() -> None:
    bucket = Bucket()
    bucket.take(0.0, 1, 10)
    assert bucket.wait(0.0, 1, 2) == pytest.approx(9.0)
    assert bucket.remaining(0.0, 1, 2) == 0


def test_a_bucket_counts_what_was_taken_in_a_second() -> None:
    bucket = Bucket()
    for _ in range(3):
        bucket.take(10.2, 100)
    bucket.take(11.1, 100)
    assert [bucket.per_second(now) for now in (11.5, 12.0, 13.0)] == [3, 1, 0]


@given(st.lists(st.floats(0, 10), max_size=50), st.integers(1, 20), st.integers(1, 20))
def test_a_bucket_never_gives_more_than_burst_and_rate(pauses: list[float], rate: int, burst: int) -> None:
    bucket, now, taken = Bucket(), 0.0, 0
    for pause in pauses:
        now += pause
        while not bucket.wait(now, rate, burst):
            bucket.take(now, rate)
            taken += 1
        assert taken <= burst + rate * now + 1e-3


def test_the_settings_are_the_quotas_of_every_tenant() -> None:
    assert load({}, {}).tenant_quota == TenantQuota()
    values = load({"quota_streams": 7}, {"ONWARD_QUOTA_PRIORITY": "-5", "ONWARD_QUOTA_TASKS": "0"}).tenant_quota
    assert (values.streams, values.priority, values.tasks) == (7, -5, 0)
    for wrong in ({"quota_requests": -1}, {"quota_queue_share": 101}, {"quota_refused": "many"}):
        with pytest.raises(BadSetting):
            load(wrong, {})


def test_values_of_a_newer_version_are_left_out() -> None:
    assert TenantQuota().with_values({"requests": 5, "of_tomorrow": 1}) == TenantQuota(requests=5)
    assert "requests" in NAMES


def test_a_share_of_a_short_queue_is_one_task_at_least() -> None:
    assert TenantQuota(queue_share=50).queue_tasks(1) == 1
    assert TenantQuota(queue_share=50).queue_tasks(100) == 50
    assert TenantQuota(queue_share=0).queue_tasks(100) == 0


def test_a_tenant_has_few_turn_groups_however_many_groups_it_names() -> None:
    named = {turn_group("acme", f"group {n}") for n in range(1000)}
    assert len(named) == TURN_LANES
    assert named | {turn_group("acme", None)} == set(turn_groups("acme"))
    assert turn_group(None, "vip") is None
