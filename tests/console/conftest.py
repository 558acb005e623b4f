"""One server and one browser for a module: real processes, a real Chromium. Each test has a fresh profile. Its fixture checks
the errors of the page, the violations of its policy, and the hosts that it sent requests to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward import Onward

STAGE = "tests.console.stage:app"


def chromium() -> tuple[str | None, str]:
    """A browser of this machine (None: Playwright's own), or why there is none."""
    named = os.environ.get("ONWARD_CHROMIUM")
    if named:
        return named, "" if Path(named).exists() else f"ONWARD_CHROMIUM names {named}, which is not there"
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if (program := shutil.which(name)) is not None:
            return program, ""
    return None, ""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium; without one, a skip with the reason. It lives for a module and not for a session: its event loop runs in
    this thread, and tests of other modules could not run theirs."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        pytest.skip("there is no playwright here: pip install playwright")
    path, why = chromium()
    if why:
        pytest.skip(why)
    with sync_playwright() as playwright:
        try:
            launched = playwright.chromium.launch(executable_path=path, args=["--disable-dev-shm-usage"])
        except Error as error:
            pytest.skip(
                f"no browser starts here ({str(error).splitlines()[0]}); apt install chromium, or name one in ONWARD_CHROMIUM"
            )
        yield launched
        launched.close()


class Server:
    """`onward serve` as a process."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.db = folder, f"sqlite:///{folder}/stage.db"
        self.env = {**os.environ, "ONWARD_DB": self.db, "STAGE": str(folder)}
        self._processes: list[subprocess.Popen[str]] = []
        self.address, _ = self.start("serve", STAGE, "--port", "0", *options)
        self.client = httpx2.Client(base_url=self.address, timeout=60)

    def start(self, *command: str, module: str = "onward") -> tuple[str, subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *command],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._processes.append(process)
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if " ready:" in line:
                threading.Thread(
                    target=process.stdout.read, daemon=True
                ).start()  # or it would stop when the pipe is full
                address = re.search(r"http://\S+", line)
                return address[0] if address else "", process
        raise AssertionError(f"{command} did not start: {''.join(seen)}")

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(20)

    def submit(self, task: str, value: Any, **options: Any) -> str:
        answer = self.client.post("/api/tasks", json={"task": task, "input": value, **options})
        assert answer.status_code in {200, 202}, answer.text
        task_id: str = answer.json()["task_id"]
        return task_id

    def get(self, task_id: str) -> dict[str, Any]:
        task: dict[str, Any] = self.client.get(f"/api/tasks/{task_id}").json()
        return task

    def ended(self, task_id: str) -> dict[str, Any]:
        for _ in range(12):
            answer = self.client.get(f"/api/tasks/{task_id}/result", params={"timeout_s": 5})
            if answer.status_code == 200:
                task: dict[str, Any] = answer.json()
                return task
        raise AssertionError(f"{task_id} does not end: {answer.text}")

    def pass_(self, name: str, *numbers: int) -> None:
        """Let these rows of a task go through."""
        for number in numbers:
            (self.folder / f"{name}-{number}").touch()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a worker for the queue `default`. A test may start more processes."""
    started = Server(tmp_path_factory.mktemp("stage"), "--queues", "default")
    yield started
    started.stop()


WATCH = """
window.__violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.__violations.push(event.violatedDirective + " " + event.blockedURI));
"""


class Visit:
    """A page with its errors, requests and dialogs."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address.rstrip("/")
        self.errors: list[str] = []
        self.requests: list[Any] = []
        self.dialogs: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request))  # noqa: PLW0108 -- playwright wants a function
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        page.add_init_script(WATCH)

    def go(self, where: str = "/tasks") -> Any:
        self.page.goto(f"{self.address}/#{where}")
        return self.page

    def check(self) -> None:
        """The page had no error, no dialog and no violation of its policy, ran no foreign script, and sent requests to its
        server only."""
        assert self.errors == []
        assert self.dialogs == []
        assert self.page.evaluate("window.__violations") == []
        assert self.page.evaluate("window.__ran") is None
        assert {
            request.url for request in self.requests if not request.url.startswith((self.address, "blob:", "data:"))
        } == set()


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Visit]:
    """A page in a fresh profile; the fixture checks at the end what it did."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(15_000)
    opened = Visit(context.new_page(), server.address)
    yield opened
    if opened.page.url.startswith("http"):
        opened.check()
    context.close()


@pytest.fixture
def app() -> None:
    """Not the app of other tests: here it is a process."""
    assert Onward
