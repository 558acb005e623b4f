"""How values are packed for an engine. `test_temporal_large.py` has the same on a server."""

from __future__ import annotations

import re

import pytest

from onward.engines import wire
from onward.engines.large import MAX_PAYLOAD_BYTES, LargeValues, PlainValues
from onward.errors import OnwardError

TASK = "0" * 26
LOOKALIKE = b'{"%b":["x","y"]}' % wire.REFERENCE.encode()


async def test_an_engine_without_references_takes_values_as_they_are() -> None:
    plain = PlainValues("Cadence")
    assert await plain.pack(TASK, LOOKALIKE, "the input") == LOOKALIKE.decode()
    assert len(await plain.pack(TASK, b"x" * MAX_PAYLOAD_BYTES, "the input")) == MAX_PAYLOAD_BYTES


async def test_a_value_that_is_too_large_is_refused() -> None:
    data = b"x" * (MAX_PAYLOAD_BYTES + 1)
    for packer, sentence in (
        (
            PlainValues("Cadence"),
            "that fit into one payload of Cadence; leave large results as artifacts (ctx.artifact)",
        ),
        (LargeValues(), "that a task on Temporal can have here; give artifacts= a folder or a bucket"),
    ):
        with pytest.raises(
            OnwardError, match=re.escape(f"the input of 1,500,001 bytes is more than the 1,500,000 {sentence}")
        ):
            await packer.pack(TASK, data, "the input")


async def test_without_a_place_a_value_that_looks_like_a_reference_is_refused() -> None:
    with pytest.raises(OnwardError, match=r"begins like a reference of Onward's own"):
        await LargeValues().pack(TASK, LOOKALIKE, "the input")
