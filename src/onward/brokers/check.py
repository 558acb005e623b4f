"""Checks brokers for `onward doctor`: each is reachable, and each place exists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from onward.brokers.port import Finding, Source
from onward.core.views import Check
from onward.errors import BrokerUnavailable, OnwardError

CHECK_TIMEOUT_S = 3.0
"""Seconds for the check of one place."""

MAX_CHECKED = 50
"""Places that one run checks."""

OpenSource = Callable[[str, str], Source]
"""The source of a broker and a place."""


async def check_brokers(brokers: Sequence[str], places: Mapping[str, Sequence[str]], source: OpenSource) -> list[Check]:
    """A check for each place of these brokers, and for each broker without a place."""
    wanted = [(broker, place) for broker in sorted(brokers) for place in sorted(places.get(broker, ())) or [""]]
    checks = await asyncio.gather(*[_check(source, broker, place) for broker, place in wanted[:MAX_CHECKED]])
    if more := len(wanted) - MAX_CHECKED:
        checks += [Check("brokers", None, f"{more:,} more places were not checked")] if more > 0 else []
    return checks


async def _check(source: OpenSource, broker: str, place: str) -> Check:
    name = f"broker {broker}/{place}" if place else f"broker {broker}"
    try:
        findings = await _look(source(broker, place))
    except TimeoutError:
        return Check(name, False, f"no answer within {CHECK_TIMEOUT_S:g} seconds; {_advice(broker)}")
    except BrokerUnavailable as error:
        return Check(name, False, f"{error}; {_advice(broker)}")
    except OnwardError as error:
        return Check(name, False, str(error))
    if not findings:
        return Check(name, True, "reachable")
    fine = False if any(finding.fine is False for finding in findings) else None
    return Check(name, fine, "; ".join(finding.detail for finding in findings))


def _advice(broker: str) -> str:
    return f"see that it runs, and that ONWARD_BROKER_{broker.upper()} is its URL"


async def _look(source: Source) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await source.check()
    finally:
        await source.close()
