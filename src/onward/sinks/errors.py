"""Errors about the URL of a webhook."""

from __future__ import annotations

from onward.errors import UsageError


class BadWebhook(UsageError):
    """A URL to which no webhook is sent."""

    code = "bad_webhook"
    status = 422

    def __init__(self, url: object, why: str) -> None:
        self.why = why
        super().__init__(f"no webhook is sent to {_shown(url)!r}: {why}; nothing was written")


def _shown(url: object) -> str:
    """The URL without its query, which may hold a secret."""
    return str(url).partition("?")[0][:120]
