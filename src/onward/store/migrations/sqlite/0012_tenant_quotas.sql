-- Quotas of tenants, and turns that no tenant can multiply.

-- Quotas that an admin gave a tenant, as JSON by their names. The settings hold for all others.
CREATE TABLE onward_tenant_quotas (
    tenant     TEXT PRIMARY KEY,
    quota      BLOB NOT NULL,
    changed_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- The group by which a task of a tenant gets its turns: a tenant has a few of them, however many groups it names. The index also
-- counts the waiting tasks of a tenant. It is empty where no task has a tenant.
ALTER TABLE onward_queue ADD COLUMN turn_group TEXT;
CREATE INDEX onward_queue_turns ON onward_queue (turn_group, queue, priority, COALESCE(turn, position)) WHERE turn_group IS NOT NULL AND worker IS NULL;
