-- Whose tasks are, who may ask, and who did what.

-- The tenant of a task; none for all who name none. The index is empty where nobody has a tenant.
ALTER TABLE onward_tasks ADD COLUMN tenant TEXT;
CREATE INDEX onward_tasks_tenant ON onward_tasks (tenant, id) WHERE tenant IS NOT NULL;

-- Keys. Of the key itself only its hash is here. A key is revoked, never deleted.
CREATE TABLE onward_keys (
    id           TEXT PRIMARY KEY,
    hash         BLOB NOT NULL,
    name         TEXT NOT NULL,
    tenant       TEXT,
    scopes       TEXT NOT NULL,
    agent        TEXT,
    created_at   REAL NOT NULL,
    expires_at   REAL,
    revoked_at   REAL,
    last_used_at REAL
) STRICT;

-- The audit: who did what to what. Each entry has the hash of the one before it, and none is ever changed.
CREATE TABLE onward_audit (
    number  INTEGER PRIMARY KEY,
    at      REAL NOT NULL,
    tenant  TEXT,
    key     TEXT,
    name    TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    data    BLOB NOT NULL,
    before  TEXT NOT NULL,
    hash    TEXT NOT NULL
) STRICT;
CREATE INDEX onward_audit_tenant ON onward_audit (tenant, number) WHERE tenant IS NOT NULL;
CREATE TRIGGER onward_audit_update BEFORE UPDATE ON onward_audit BEGIN SELECT RAISE(ABORT, 'the audit is only ever added to'); END;
CREATE TRIGGER onward_audit_delete BEFORE DELETE ON onward_audit BEGIN SELECT RAISE(ABORT, 'the audit is only ever added to'); END;
