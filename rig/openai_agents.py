"""The OpenAI Agents SDK, from PyPI into the repository's .cache/: it wants an older version of websockets than the other tools of developers.

from rig import openai_agents
openai_agents.obtain()              # from here on `import agents` works in this process
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rig.install import CACHE, once, pip
from rig.server import Unavailable

VERSION = "0.24.0"
HOME = CACHE / f"openai-agents-{VERSION}"
REFUSED = CACHE / "openai-agents.refused"
"""The run of the tests that could not install it. pytest-xdist wants all processes of a run to collect the same tests."""


def obtain() -> Path:
    """The directory with the SDK, which `sys.path` has from now on. Raises Unavailable: then in all processes of a run of the tests."""
    with once("openai-agents"):
        if not (HOME / "agents").exists():
            _install(os.environ.get("PYTEST_XDIST_TESTRUNUID", ""))
    if str(HOME) not in sys.path:
        sys.path.append(str(HOME))
    return HOME


def _install(run: str) -> None:
    if run and REFUSED.exists() and REFUSED.read_text() == run:
        raise Unavailable("another process of this run could not install openai-agents")
    try:
        pip(HOME, f"openai-agents=={VERSION}")
    except Unavailable:
        REFUSED.write_text(run)
        raise
