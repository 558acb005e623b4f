"""The agent of `disk.py`, written with Pydantic AI. One line makes it durable.

$ export OPENAI_API_KEY=…       # or OPENAI_BASE_URL, for a server of your own
$ LOGS=/var/log/shop onward worker examples.disk_pydantic_ai:app
$ onward submit devops "\\"I'm out of disk space. Fix it.\\"" --follow
$ onward approve
"""

from __future__ import annotations

import os

from pydantic_ai import Agent, Tool

from examples import disk
from onward import Budget, Onward

app = Onward()
agent = Agent(
    f"openai:{os.environ.get('ONWARD_MODEL', 'gpt-5-mini')}",
    name="devops",
    instructions="You are an autonomous DevOps agent. Look before you touch anything, and look again afterwards.",
    tools=[
        disk.check_disk.function,
        Tool(disk.clean_logs.function, metadata={"onward": {"risk": "write_local", "idempotent": True}}),
    ],
)

app.pydantic_ai(agent, approve=["write_local"], budget=Budget(max_steps=20))
