"""Statements, as the tests that lose the answers of single statements know them."""

from __future__ import annotations

import pytest

from onward.store.statements import load
from tests.faults.statements import PARTS


@pytest.mark.parametrize("verb", PARTS)
def test_the_parts_that_the_fault_tests_look_for_are_in_a_statement(verb: str) -> None:
    assert any(PARTS[verb] in statement.sql for statement in load("postgres").values()), (
        "change tests/faults/statements.py"
    )
