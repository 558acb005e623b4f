"""The smallest agent that is of use: "I'm out of disk space. Fix it."

    $ export OPENAI_API_KEY=…       # or OPENAI_BASE_URL, for a server of your own
    $ LOGS=/var/log/shop onward worker examples.disk:app
    $ onward submit devops "\\"I'm out of disk space. Fix it.\\"" --follow
    $ onward approve

It deletes rotated logs (*.log.1 and so on) of one folder, and nothing else; a person approves the exact call before it runs.
`onward demo agent` plays the same with workers that are killed, and with no key.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from onward import Budget, Onward, tool

app = Onward()


def folder() -> Path:
    """The only folder that the tools touch."""
    return Path(os.environ.get("LOGS", "logs"))


@tool
def check_disk() -> str:
    """How full is the disk, and how much of that are rotated logs?"""
    usage = shutil.disk_usage(folder())
    rotated = [path.stat().st_size for path in folder().glob("*.log.[0-9]*")]
    return f"{100 * usage.used // usage.total} % used; {len(rotated)} rotated logs have {sum(rotated):,} bytes"


@tool(risk="write_local", idempotent=True)
def clean_logs(keep: int = 1) -> str:
    """Delete rotated logs, but for the `keep` latest of each."""
    old = [path for path in folder().glob("*.log.[0-9]*") if int(path.suffix[1:]) > keep]
    for path in old:
        path.unlink(missing_ok=True)
    return f"deleted {', '.join(sorted(path.name for path in old)) or 'nothing'}"


devops = app.agent(
    "devops",
    model=f"openai:{os.environ.get('ONWARD_MODEL', 'gpt-5-mini')}",
    instructions="You are an autonomous DevOps agent. Look before you touch anything, and look again afterwards.",
    tools=[check_disk, clean_logs],
    approve=["write_local", "external_action"],
    budget=Budget(max_steps=20),
    deadline="5m",
)
