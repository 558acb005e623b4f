"""A part of the suites of the store and the engine, run again with payloads encrypted. `ONWARD_TEST_ENCRYPTION=1` runs all of them so."""

# ruff: noqa: F401, F403 -- the tests of those modules are collected here again
from __future__ import annotations

import pytest

from tests.engine.test_checkpoints import *
from tests.service.test_approval_rules import test_every_rule_with_every_vote_and_two_of_three_with_every_two_votes
from tests.store.test_store_fork import *
from tests.store.test_store_messages import *
from tests.store.test_store_save import *
from tests.store.test_store_submit import *
from tests.store.test_store_votes import (
    test_a_vote_and_a_denial_at_once_give_one_decision,
    test_twenty_votes_at_once_give_one_decision,
)
from tests.store.test_tails import *

pytestmark = pytest.mark.slow
