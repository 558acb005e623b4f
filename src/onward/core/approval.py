"""Digests of approvals: a decision names the digest of what its caller was shown. Pure.

The digest is the SHA-256 of canonical JSON (`wire.digest`) of these fields of an approval, under the names that they have in its
document: `id`, `task`, `text`, `risk` and `data`. For a call of an agent's tool, `data` has the tool and all of its arguments. So
a receiver can compute the digest of a document itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.core import wire


def digest(approval_id: str, task: str, payload: Mapping[str, Any]) -> str:
    """The digest of an approval; `payload` is that of its record."""
    shown = {
        "id": approval_id,
        "task": task,
        "text": payload.get("what"),
        "risk": payload.get("risk"),
        "data": payload.get("data"),
    }
    return wire.digest(shown)


def digest_with(approval_id: str, task: str, payload: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """The digest of the same approval with these arguments in place of its own: what was decided."""
    return digest(approval_id, task, {**payload, "data": {**payload["data"], "arguments": arguments}})
