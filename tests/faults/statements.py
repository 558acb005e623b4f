"""Parts of Onward's statements by which the proxy knows them."""

from __future__ import annotations

PARTS = {
    "submit": "INSERT INTO onward_tasks",
    "claim": "FOR UPDATE OF q SKIP LOCKED",
    "journal": "AND seq >= COALESCE",
    "save": "FROM unnest($1::text[], $2::int[], $3::int[]",
    "settle": "AS e(id, state, attempt, seq)",
    "wake": "due AS MATERIALIZED",
    "outlook": "SELECT ARRAY(SELECT DISTINCT p.queue",
    "beat": "UPDATE onward_workers SET lease_until",
    "workers": "SELECT id, machine, host",
    "rescue": "WITH lost AS",
    "notify": "pg_notify",
    "cancel": "DELETE FROM onward_queue WHERE task_id = $1",
    "resume": "DELETE FROM onward_outcomes",
    "join": "INSERT INTO onward_workers",
    "leave": "DELETE FROM onward_workers WHERE id",
}
"""Verb → a part of its SQL that the statements of the other verbs do not have."""
