"""The headers `RateLimit` and `RateLimit-Policy` (IETF draft httpapi-ratelimit-headers, structured fields).

RateLimit-Policy: "tenant";q=400;w=2, "key";q=200;w=2     400 requests in 2 s for the tenant, 200 for this key
RateLimit: "tenant";r=399;t=1, "key";r=199;t=1            so many are left; all of them again in t seconds
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from onward.service.process_use import RateState

RATES = "onward.rates"
"""The key in the ASGI scope under which the rates of a request are kept for its response."""


def headers(rates: Sequence[RateState]) -> dict[str, str]:
    """The headers for these rates; none for a caller without a quota."""
    if not rates:
        return {}
    policies = [f'"{rate.name}";q={rate.requests};w={max(1, math.ceil(rate.window_s))}' for rate in rates]
    states = [f'"{rate.name}";r={rate.remaining};t={math.ceil(rate.full_in_s)}' for rate in rates]
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(states)}
