"""Errors between a client and its server."""

from __future__ import annotations

from onward.errors import OnwardError


class Unreachable(OnwardError):
    """The server does not answer. The request may have been carried out (`in_doubt`), unless sending it twice has the same effect as
    once."""

    code = "unreachable"
    status = 503
    exit_status = 6

    def __init__(self, url: str, tries: int, why: str, in_doubt: bool) -> None:
        self.url, self.tries, self.in_doubt = url, tries, in_doubt
        times = "once" if tries == 1 else f"{tries} times"
        advice = (
            "the request was sent and may have been carried out: look, before you ask again"
            if in_doubt
            else "check the address, and whether the server runs"
        )
        super().__init__(f"{url} was asked {times} and gave no answer ({why}); {advice}")
