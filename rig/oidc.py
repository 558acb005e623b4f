"""A certified OpenID provider that is not ours: oidc-provider, from the npm registry into the repository's .cache/.

    with OidcProvider(redirect_uri, {"ada": {"groups": ["ops"]}}) as provider:
        provider.issuer             # for ONWARD_OIDC_ISSUER
        provider.sign_in(url, "ada")   # what a browser does with the provider's pages; returns the address it is sent back to

`oidc_provider/package-lock.json` has the version and the hash of every package. Node is taken from $PATH, else from a wheel.
"""

from __future__ import annotations

import fcntl
import html
import json
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin

import httpx2

from rig import server
from rig.aimock import CACHE, _run, node, npm
from rig.server import Unavailable

SOURCE = Path(__file__).parent / "oidc_provider"
START_TIMEOUT_S = 30.0
MAX_PAGES = 12
"""Pages and redirects of one sign-in."""


class OidcProvider:
    """One running provider with its own keys. The ids of people are their logins."""

    def __init__(
        self,
        redirect_uri: str,
        accounts: Mapping[str, Mapping[str, Any]],
        *,
        secret: str = "s3cret of the tests",
        in_id_token: bool = False,
        port: int | None = None,
    ) -> None:
        self.port = server.free_port() if port is None else port
        self.client_id, self.secret = "onward", secret
        self._config = {
            "client_id": self.client_id,
            "client_secret": secret,
            "redirect_uris": [redirect_uri],
            "accounts": accounts,
            "in_id_token": in_id_token,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def issuer(self) -> str:
        return f"http://localhost:{self.port}"

    def start(self) -> Self:
        """Returns when it answers. Raises Unavailable if it cannot be had here."""
        program = obtain()
        server.close_at_exit(self)
        log = program.parent / f"log.{self.port}"
        command = [*server.leash("KILL"), node(), str(program), str(self.port), json.dumps(self._config)]
        with log.open("wb") as output:
            self._process = server.in_lasting_thread(
                lambda: subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            )
        end = time.monotonic() + START_TIMEOUT_S
        while b"ready" not in log.read_bytes():
            if self._process.poll() is not None or time.monotonic() > end:
                raise Unavailable(f"oidc-provider does not start; its log:\n{server.tail(log)}")
            time.sleep(0.05)
        return self

    def close(self) -> None:
        """End it."""
        if server.may_close(self) and self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def sign_in(self, url: str, login: str) -> str:
        """Go through the provider's pages as a browser does, and return the first address that is not the provider's."""
        with httpx2.Client(timeout=30) as browser:
            response = browser.get(url)
            for _ in range(MAX_PAGES):
                if "location" in response.headers:
                    url = urljoin(str(response.url), response.headers["location"])
                    if not url.startswith(self.issuer):
                        return url
                    response = browser.get(url)
                else:
                    response = self._submit(browser, response, login)
        raise AssertionError(f"the sign-in of {login} does not end: {response.text[:500]}")

    def _submit(self, browser: httpx2.Client, page: httpx2.Response, login: str) -> httpx2.Response:
        action = re.search(r'<form[^>]*action="([^"]+)"', page.text)
        assert page.status_code == 200, page.text
        assert action is not None, page.text
        fields = dict(re.findall(r'<input[^>]*type="hidden" name="([^"]+)" value="([^"]*)"', page.text))
        if fields.get("prompt") == "login":
            fields |= {"login": login, "password": "any"}
        return browser.post(urljoin(str(page.url), html.unescape(action[1])), data=fields)


def obtain() -> Path:
    """The provider's program, installed once for all processes of a test run."""
    home = CACHE / "oidc-provider"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "oidc-provider.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = (SOURCE / "package-lock.json").read_bytes()
        installed = home / "installed.json"
        home.mkdir(exist_ok=True)
        for file in SOURCE.iterdir():
            shutil.copy(file, home)
        if not installed.exists() or installed.read_bytes() != wanted:
            quietly = (
                "--silent",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
                "--fetch-retries=1",
                "--fetch-timeout=20000",
            )
            _run([*npm(), "ci", *quietly, "--prefix", home])
            installed.write_bytes(wanted)
    return home / "provider.mjs"
