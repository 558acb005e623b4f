"""A part of the suites of the store and the engine, run again with payloads encrypted. `ONWARD_TEST_ENCRYPTION=1` runs all of them so."""

# ruff: noqa: F403 -- the tests of those modules are collected here again
from __future__ import annotations

from tests.engine.test_checkpoints import *
from tests.store.test_store_fork import *
from tests.store.test_store_messages import *
from tests.store.test_store_save import *
from tests.store.test_store_submit import *
from tests.store.test_tails import *
