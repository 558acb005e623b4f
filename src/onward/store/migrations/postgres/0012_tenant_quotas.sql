-- Quotas of tenants, and turns that no tenant can multiply.

-- Quotas that an admin gave a tenant, as JSON by their names. The settings hold for all others.
CREATE TABLE onward_tenant_quotas (
    tenant     text COLLATE "C" PRIMARY KEY,
    quota      bytea NOT NULL,
    changed_at float8 NOT NULL
);

-- The group by which a task of a tenant gets its turns: a tenant has a few of them, however many groups it names. The index also
-- counts the waiting tasks of a tenant. It is empty where no task has a tenant.
ALTER TABLE onward_queue ADD COLUMN turn_group text COLLATE "C";
CREATE INDEX onward_queue_turns ON onward_queue (turn_group, queue, priority, COALESCE(turn, position)) WHERE turn_group IS NOT NULL AND worker IS NULL;
