"""Dead letters for tests, without a broker."""

from __future__ import annotations

from typing import Any

from onward import Onward
from onward.store.shared.intakes import NewLetter


async def bury(
    app: Onward, *bodies: bytes, intake: str = "orders", tenant: str | None = None, **more: Any
) -> list[str]:
    """Dead letters with these bodies; their ids, oldest first."""
    letters = [
        NewLetter(
            id=app._ids(),
            intake=intake,
            identity=f"at:{app._ids()}",
            tenant=tenant,
            reason=f"no task takes {body[:20]!r}",
            position="1-0",
            sent_id="",
            size=len(body),
            headers={"content-type": "application/json"},
            body=body,
        )._replace(**more)
        for body in bodies
    ]
    await app.store.intakes.bury(letters)
    return [letter.id for letter in letters]
