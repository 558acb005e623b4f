"""Approvals: asks a person through the host, and reads the decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onward.core import record as r
from onward.core.approval import decision_of
from onward.core.durations import Duration, seconds
from onward.errors import BadSetting, Denied

if TYPE_CHECKING:
    from onward.engine.context.host import Host

_NOTHING: Mapping[str, str] = {}


async def ask_approval(
    host: Host,
    what: str,
    *,
    risk: str | None,
    data: Any,
    timeout: Duration | None,
    default: str,
    about: Mapping[str, str] = _NOTHING,
) -> dict[str, Any]:
    """`Context.approve`, with words about the action for the person who decides (`effect`, `description`). A replay does not compare
    them: they may change with the code."""
    if default not in {"approve", "deny"}:
        raise BadSetting("default", default, "'approve' or 'deny'")
    request = {"what": str(what), "risk": risk, "data": data, "default": None if timeout is None else default, **about}
    request = {name: value for name, value in request.items() if value is not None}
    message = await host.wait(r.APPROVAL, "approval", request, None if timeout is None else seconds(timeout, "timeout"))
    return approved(str(what), message, default)


def approved(what: str, message: Mapping[str, Any] | None, default: str) -> dict[str, Any]:
    """The decision in the message to a task that asked for an approval; None is no message in time. Raises Denied."""
    by_default = {"decision": default, "reason": "nobody decided in time"}
    decision = by_default if message is None else decision_of(message)
    if decision["decision"] != "approve":
        raise Denied(what, decision.get("reason") or "", decision.get("by") or None, expired=message is None)
    return decision
