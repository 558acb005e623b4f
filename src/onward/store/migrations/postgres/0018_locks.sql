-- Locks with fencing tokens.

-- One row for each task or program that holds a lock (it has a token) or waits for it (it has none). A free lock has no row.
-- `tenant` is '' for locks without a tenant. `task_id` and `key` name the block of a task; `until` is the end of the lease of a program.
-- `woken` is the time of the last message to a waiting task that it is its turn; `outside` names a coordinator outside of this database.
CREATE TABLE onward_locks (
    tenant  text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    owner   text COLLATE "C" NOT NULL,
    label   text NOT NULL,
    task_id text COLLATE "C",
    key     text COLLATE "C" NOT NULL,
    token   bigint,
    place   bigint NOT NULL,
    since   float8 NOT NULL,
    until   float8,
    woken   float8,
    bucket  int NOT NULL,
    outside text NOT NULL,
    PRIMARY KEY (tenant, name, owner)
);
CREATE UNIQUE INDEX onward_locks_held ON onward_locks (tenant, name) WHERE token IS NOT NULL;
CREATE INDEX onward_locks_line ON onward_locks (tenant, name, place) WHERE token IS NULL;
CREATE INDEX onward_locks_task ON onward_locks (task_id) WHERE task_id IS NOT NULL;

-- The counters of tokens. All names of a bucket share one, so that a token of a name never goes back, and no row of a free lock is kept.
-- A transaction that takes or frees a lock locks the row of its bucket first.
CREATE TABLE onward_lock_counters (
    bucket int PRIMARY KEY,
    token  bigint NOT NULL
);
INSERT INTO onward_lock_counters (bucket, token) SELECT bucket, 0 FROM generate_series(0, 255) AS bucket;
