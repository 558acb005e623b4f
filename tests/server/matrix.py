"""Every call of the server, the scope that it needs, and an example request; and the table of the docs with the roles that may
make the call: `python -m tests.server.matrix > docs/reference/permissions.md`. The tests try every cell of the table."""

from __future__ import annotations

import dataclasses
from typing import Any

from onward.core.caller import ADMIN, DECIDE, READ, ROLES, SUBMIT
from onward.server.http import app as http


@dataclasses.dataclass(frozen=True)
class Row:
    """An example request of a call on the resources of a tenant. `{fixer}` and the like stand for the ids."""

    path: str
    scope: str | None
    """None for calls that are open; empty for those of whoever has a key."""
    body: Any = None
    lists: bool = False
    decides: bool = False
    place: bool = False
    open: bool = False
    """Whether it shows the same to all tenants."""
    counts: bool = False
    """Whether its answer is a number, which for a stranger is that of nothing."""
    call: str | None = None
    """The name of the call, where the row has another one."""


ROWS: dict[str, Row] = {
    "submit": Row("/api/tasks", SUBMIT, {"task": "quick", "input": {"goal": "on"}, "after": "{done}"}),
    "count": Row("/api/tasks/count?parent={asker}", READ, counts=True),
    "act": Row(
        "/api/tasks/actions",
        SUBMIT,
        {"action": "priority", "priority": -3, "filter": {"parent": "{asker}"}, "count": 5},
        counts=True,
    ),
    "list": Row("/api/tasks", READ, lists=True),
    "get": Row("/api/tasks/{fixer}", READ),
    "result": Row("/api/tasks/{done}/result", READ),
    "events": Row("/api/tasks/{fixer}/events", READ),
    "timeline": Row("/api/tasks/{fixer}/timeline", READ),
    "record": Row("/api/tasks/{fixer}/records/1", READ),
    "turns": Row("/api/tasks/{fixer}/turns", READ),
    "turn": Row("/api/tasks/{fixer}/turns/1", READ),
    "progress": Row("/api/progress?task_id={done}", READ),
    "children": Row("/api/tasks/{asker}/children", READ),
    "usage": Row("/api/usage?by=key", READ, lists=True, open=True),
    "system": Row("/api/system", ADMIN, place=True),
    "pause_schedule": Row("/api/schedules/nightly/pause", ADMIN, place=True),
    "unpause_schedule": Row("/api/schedules/nightly/unpause", ADMIN, place=True),
    "trigger": Row("/api/schedules/nightly/trigger", ADMIN, place=True),
    "drain_queue": Row("/api/queues/other/drain", ADMIN, place=True),
    "priority": Row("/api/tasks/{asker}/priority", SUBMIT, {"priority": -7}),
    "pause": Row("/api/tasks/{asker}/pause", SUBMIT),
    "resume": Row("/api/tasks/{asker}/resume", SUBMIT),
    "fork preview": Row("/api/tasks/{asker}/fork", SUBMIT, {"at": 1, "preview": True}, call="fork"),
    "fork": Row("/api/tasks/{asker}/fork", SUBMIT, {"at": 1}),
    "fork_places": Row("/api/tasks/{asker}/forks", READ),
    "signal": Row("/api/tasks/{asker}/signals/go", SUBMIT, {"value": 1}),
    "message": Row("/api/tasks/{fixer}/message", SUBMIT, {"text": "hurry"}),
    "queues": Row("/api/queues", READ, place=True),
    "workers": Row("/api/workers", READ, place=True),
    "versions": Row("/api/versions", READ, place=True),
    "stats": Row("/api/stats", READ, place=True),
    "history": Row("/api/history", ADMIN, place=True),
    "pause_queue": Row("/api/queues/default/pause", ADMIN, place=True),
    "unpause_queue": Row("/api/queues/default/unpause", ADMIN, place=True),
    "approvals": Row("/api/approvals", READ, lists=True),
    "approvals of a task": Row("/api/approvals?task_id={fixer}", READ, call="approvals"),
    "approval": Row("/api/approvals/{approval}", READ),
    "asked_in": Row("/api/approvals/{approval}/turn", READ),
    "decide": Row("/api/approvals/{approval}", DECIDE, {"decision": "approve"}, decides=True),
    "questions": Row("/api/questions", READ, lists=True),
    "questions of a task": Row("/api/questions?task_id={asker}", READ, call="questions"),
    "question": Row("/api/questions/{question}", READ),
    "answer": Row("/api/questions/{question}", DECIDE, {"answer": "fast"}, decides=True),
    "in_doubt": Row("/api/doubts", ADMIN, place=True),
    "doubts": Row("/api/tasks/{doubter}/doubts", READ),
    "resolve": Row("/api/tasks/{doubter}/resolve", DECIDE, {"verdict": "not_happened"}, decides=True),
    "budget": Row("/api/tasks/{fixer}/budget", READ),
    "raise_budget": Row("/api/tasks/{fixer}/budget", DECIDE, {"max_llm_tokens": 2_000_000}, decides=True),
    "state": Row("/api/tasks/{fixer}/state", READ),
    "patch": Row("/api/tasks/{fixer}/state", SUBMIT, {"patch": {"flag_risks": ["late"]}}),
    "artifacts": Row("/api/tasks/{asker}/artifacts", READ),
    "artifact": Row("/api/artifacts/{asker}.{artifact}", READ),
    "cancel": Row("/api/tasks/{asker}/cancel", SUBMIT),
    "schedules": Row("/api/schedules", READ, lists=True),
    "whoami": Row("/api/whoami", ""),
    "handlers": Row("/api/handlers", READ, lists=True, open=True),
    "healthz": Row("/healthz", None),
    "readyz": Row("/readyz", None),
    "metrics": Row("/metrics", ADMIN, place=True),
    "hook": Row("/api/hooks/none", None),
    "subscribe": Row(
        "/api/subscriptions", ADMIN, {"url": "https://hooks.example.com/", "types": ["*"], "tenant": "acme"}
    ),
    "subscriptions": Row("/api/subscriptions", ADMIN, lists=True),
    "deliveries": Row("/api/deliveries", ADMIN, lists=True),
    "redeliver": Row("/api/deliveries/{delivery}/redeliver", ADMIN),
    "intakes": Row("/api/intakes", READ, lists=True),
    "dead_letters": Row("/api/dead-letters", READ, lists=True),
    "dead_letter": Row("/api/dead-letters/{letter}", READ),
    "redrive_letters": Row("/api/dead-letters/redrive", SUBMIT, {"id": "{letter}"}),
    "redrive_letters of an intake": Row(
        "/api/dead-letters/redrive", SUBMIT, {"intake": "{intake}"}, counts=True, call="redrive_letters"
    ),
    "drop_letters": Row("/api/dead-letters/drop", ADMIN, {"id": "{letter}"}),
    "unsubscribe": Row("/api/subscriptions/{subscription}", ADMIN),
    "keys": Row("/api/keys", ADMIN, lists=True),
    "create_key": Row("/api/keys", ADMIN, {"name": "more", "scopes": ["read"], "tenant": "acme"}),
    "revoke_key": Row("/api/keys/{key}/revoke", ADMIN),
    "sessions": Row("/api/sessions", ADMIN, lists=True),
    "revoke_session": Row("/api/sessions/{session}/revoke", ADMIN),
    "sign_in": Row("/api/sign-in", None),
    "sign_in_callback": Row("/api/sign-in/callback", None),
    "sign_out": Row("/api/sign-out", ""),
    "quotas": Row("/api/quotas", READ, lists=True, open=True),
    "set_quota": Row("/api/quotas/acme", ADMIN, {"streams": 50}, place=True),
    "reset_quota": Row("/api/quotas/acme", ADMIN, place=True),
    "locks": Row("/api/locks", READ, lists=True),
    "release_lock": Row("/api/locks/release", ADMIN, {"name": "{lock}", "reason": "stuck", "tenant": "acme"}),
    "audit": Row("/api/audit", ADMIN, lists=True),
    "verify_audit": Row("/api/audit/verify", ADMIN, {"heads": []}, place=True),
    "encryption": Row("/api/encryption", ADMIN, place=True),
    "remove_schedule": Row("/api/schedules/nightly/remove", ADMIN, place=True),
    "prune": Row("/api/tasks/{done}", ADMIN),
}
"""In an order in which each finds what it is for."""

CALLS = {call.name: call for call in http.ROUTES}


def may(row: Row, role: str, *, tenant: bool) -> bool:
    """Whether a person with this role may make the call on their own resources. `tenant`: whether the person belongs to a
    tenant."""
    if not row.scope:
        return True
    return row.scope in ROLES[role] and not (row.place and tenant)


HEAD = """\
# Who may do what

Look here when you give people [roles](../guides/sign-in.md#roles) or programs [keys](../guides/keys.md). The tests of Onward make each of these calls
with each role, from the own tenant, from another tenant and without a tenant, and with keys of all kinds. The page is made from the same table.

- *scope* is what a key needs. A call without one is for every caller; *open* calls need no key and no session.
- A person of a tenant has the same rights on what their tenant has. For what another tenant has, the server answers as for what does not
  exist. Calls marked *installation* concern the whole installation: people and keys of a tenant may not make them.
- People without a tenant see what belongs to no tenant. With the role admin they see all tenants.
- An [agent's own key](../guides/keys.md#agents-with-keys-of-their-own) makes no call marked *decides* on what the agent takes part in.
"""


def page() -> str:
    """The table as a page."""
    lines = [HEAD, f"| call | scope | {' | '.join(ROLES)} | |", "|---|---|" + "---|" * (len(ROLES) + 1)]
    calls = {row.call or name: row for name, row in ROWS.items()}
    for name, call in sorted(CALLS.items(), key=lambda pair: (pair[1].path, pair[1].method)):
        row = calls[name]
        scope = "open" if row.scope is None else f"`{row.scope}`" if row.scope else ""
        cells = " | ".join("yes" if may(row, role, tenant=False) else "" for role in ROLES)
        notes = ", ".join(word for word, holds in (("installation", row.place), ("decides", row.decides)) if holds)
        lines.append(f"| `{call.method} {call.path}` | {scope} | {cells} | {notes} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
