"""A certified OpenID provider that is not ours: oidc-provider, from the npm registry into the repository's .cache/.

    with OidcProvider(redirect_uri, {"ada": {"groups": ["ops"]}}) as provider:
        provider.issuer                # for ONWARD_OIDC_ISSUER
        provider.sign_in(url, "ada")   # follows the provider's pages as a browser; returns the address it is sent back to

`oidc_provider/package-lock.json` has the version and the hash of every package. Node is taken from $PATH, else from a wheel.
"""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx2

from rig.base import Server
from rig.install import CACHE, node, npm, once

SOURCE = Path(__file__).parent / "oidc_provider"
MAX_PAGES = 12
"""Pages and redirects of one sign-in."""


class OidcProvider(Server):
    """One running provider with its own keys. The ids of people are their logins."""

    title = "oidc-provider"

    def __init__(
        self,
        redirect_uri: str,
        accounts: Mapping[str, Mapping[str, Any]],
        *,
        secret: str = "s3cret of the tests",
        in_id_token: bool = False,
        port: int | None = None,
    ) -> None:
        super().__init__(port=port)
        self.client_id, self.secret = "onward", secret
        self._config = {
            "client_id": self.client_id,
            "client_secret": secret,
            "redirect_uris": [redirect_uri],
            "accounts": accounts,
            "in_id_token": in_id_token,
        }

    @property
    def issuer(self) -> str:
        return f"http://localhost:{self.port}"

    def prepare(self) -> None:
        obtain()

    def command(self) -> Sequence[str | Path]:
        return [node(), obtain(), str(self.port), json.dumps(self._config)]

    def ready(self) -> bool:
        return self.http_ready("/.well-known/openid-configuration")

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
    with once("oidc-provider"):
        wanted = (SOURCE / "package-lock.json").read_bytes()
        installed = home / "installed.json"
        home.mkdir(exist_ok=True)
        for file in SOURCE.iterdir():
            shutil.copy(file, home)
        if not installed.exists() or installed.read_bytes() != wanted:
            npm("ci", home, "--ignore-scripts")
            installed.write_bytes(wanted)
    return home / "provider.mjs"
