"""The agent of `disk.py`, written with the OpenAI Agents SDK. One line makes it durable.

$ export OPENAI_API_KEY=…       # or OPENAI_BASE_URL, for a server of your own
$ LOGS=/var/log/shop onward worker examples.disk_openai_agents:app
$ onward submit devops "\\"I'm out of disk space. Fix it.\\"" --follow
$ onward approve
"""

from __future__ import annotations

import os

from agents import Agent, function_tool

from examples import disk
from onward import Budget, Onward

app = Onward()
agent = Agent(
    name="devops",
    model=os.environ.get("ONWARD_MODEL", "gpt-5-mini"),
    instructions="You are an autonomous DevOps agent. Look before you touch anything, and look again afterwards.",
    tools=[function_tool(disk.check_disk.function), function_tool(disk.clean_logs.function)],
)

app.openai_agent(
    agent,
    tools={"clean_logs": {"risk": "write_local", "idempotent": True}},
    approve=["write_local"],
    budget=Budget(max_steps=20),
)
