-- Locks with fencing tokens.

-- One row for each task or program that holds a lock (it has a token) or waits for it (it has none). A free lock has no row.
-- `tenant` is '' for locks without a tenant. `task_id` and `key` name the block of a task; `until` is the end of the lease of a program.
-- `woken` is the time of the last message to a waiting task that it is its turn; `outside` names a coordinator outside of this database.
CREATE TABLE onward_locks (
    tenant  TEXT NOT NULL,
    name    TEXT NOT NULL,
    owner   TEXT NOT NULL,
    label   TEXT NOT NULL,
    task_id TEXT,
    key     TEXT NOT NULL,
    token   INTEGER,
    place   INTEGER NOT NULL,
    since   REAL NOT NULL,
    until   REAL,
    woken   REAL,
    bucket  INTEGER NOT NULL,
    outside TEXT NOT NULL,
    PRIMARY KEY (tenant, name, owner)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX onward_locks_held ON onward_locks (tenant, name) WHERE token IS NOT NULL;
CREATE INDEX onward_locks_line ON onward_locks (tenant, name, place) WHERE token IS NULL;
CREATE INDEX onward_locks_task ON onward_locks (task_id) WHERE task_id IS NOT NULL;

-- The counters of tokens. All names of a bucket share one, so that a token of a name never goes back, and no row of a free lock is kept.
CREATE TABLE onward_lock_counters (
    bucket INTEGER PRIMARY KEY,
    token  INTEGER NOT NULL
) STRICT;
INSERT INTO onward_lock_counters (bucket, token)
WITH RECURSIVE n(bucket) AS (SELECT 0 UNION ALL SELECT bucket + 1 FROM n WHERE bucket < 255) SELECT bucket, 0 FROM n;
