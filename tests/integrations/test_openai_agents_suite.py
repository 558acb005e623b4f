"""The OpenAI Agents SDK's own tests, with every run of an agent as a task of Onward whose model requests and tool calls are steps."""

from __future__ import annotations

import re

import pytest

from rig import openai_agents
from rig.server import Unavailable
from tests.integrations import suites
from tests.integrations.test_langgraph_suites import passed

FILES = {
    "tests/test_agent_runner.py": 232,
    "tests/test_agent_runner_streamed.py": 208,
    "tests/test_agent_runner_sync.py": 6,
    "tests/test_runner_guardrail_resume.py": 6,
    "tests/test_runner_model_provider_lifecycle.py": 11,
    "tests/test_agent_scoped_approvals.py": 104,
    "tests/test_hitl_error_scenarios.py": 88,
    "tests/test_hitl_session_scenario.py": 2,
    "tests/test_handoff_tool.py": 31,
    "tests/test_handoff_history_duplication.py": 92,
    "tests/test_handoff_prompt.py": 1,
    "tests/memory/test_session.py": 56,
    "tests/memory/test_session_context_wrapper.py": 15,
    "tests/memory/test_session_limit.py": 15,
}
"""The files about runs, approvals, handoffs and sessions, and how many tests each has."""

PART = [
    "tests/test_agent_runner_sync.py",
    "tests/test_runner_guardrail_resume.py",
    "tests/test_runner_model_provider_lifecycle.py",
    "tests/test_hitl_session_scenario.py",
    "tests/test_handoff_tool.py",
    "tests/memory/test_session_limit.py",
]
"""The files that take less than a minute together. `make prove` runs all of them."""

NOT_HELD: dict[str, str] = {
    "tests/test_runner_model_provider_lifecycle.py::test_run_streamed_repeated_cancellation_waits_for_provider_cleanup": (
        "gives the run one second until it asks the model and one until it is cancelled; a task has a database to open first"
    ),
}
"""Tests that do not hold for a run that is a task, and why."""


@pytest.mark.slow
def test_the_tests_of_the_sdk_with_runs_that_are_tasks(prove: bool) -> None:
    """The plugin also replays each task, and fails the test when the replay asks a model or calls a tool."""
    try:
        folder = suites.fetch("openai-agents", openai_agents.VERSION, [f"openai-agents=={openai_agents.VERSION}"])
    except Unavailable as why:
        pytest.skip(str(why))
    files = list(FILES) if prove else PART
    left_out = [test for test in NOT_HELD if test.partition("::")[0] in files]
    words = [*files, *(f"--deselect={test}" for test in left_out), "--tb=native", "-p", "no:schemathesis"]
    line = suites.run(folder, "onward_openai_agents", *words, url="", timeout=3000)
    print(line)
    again = re.search(r"(\d+) failed", line)  # they passed the second time
    assert passed(line) + (int(again[1]) if again else 0) == sum(FILES[file] for file in files) - len(left_out)
    assert sum(FILES.values()) == 867
    assert len(NOT_HELD) <= 7
