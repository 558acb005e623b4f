"""The OpenAI Agents SDK, from PyPI into the repository's .cache/: it wants an older version of websockets than the other tools of developers.

from rig import openai_agents
openai_agents.obtain()              # from here on `import agents` works in this process
"""

from __future__ import annotations

import sys
from pathlib import Path

from rig.install import CACHE, once, pip

VERSION = "0.24.0"
HOME = CACHE / f"openai-agents-{VERSION}"


def obtain() -> Path:
    """The directory with the SDK, which `sys.path` has from now on. Raises Unavailable."""
    with once("openai-agents"):
        if not (HOME / "agents").exists():
            pip(HOME, f"openai-agents=={VERSION}")
    if str(HOME) not in sys.path:
        sys.path.append(str(HOME))
    return HOME
