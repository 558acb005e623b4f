-- The four tables of a task, the workers, and the handlers that workers offer. Times are seconds since 1970 (REAL);
-- 9e999 (infinity) is a due time that only somebody can move. onward_now() is a function that the store registers.

CREATE TABLE onward_tasks (
    id          TEXT PRIMARY KEY,
    task        TEXT NOT NULL,
    queue       TEXT NOT NULL,
    priority    INTEGER NOT NULL,
    created_at  REAL NOT NULL,
    key         TEXT,
    fingerprint TEXT NOT NULL,
    input       BLOB NOT NULL,
    options     BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX onward_tasks_key ON onward_tasks (key) WHERE key IS NOT NULL;

CREATE TABLE onward_queue (
    position  INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id   TEXT NOT NULL UNIQUE,
    due_at    REAL,
    priority  INTEGER NOT NULL,
    attempt   INTEGER NOT NULL DEFAULT 1,
    crashes   INTEGER NOT NULL DEFAULT 0,
    queue     TEXT NOT NULL,
    task      TEXT NOT NULL,
    reason    TEXT NOT NULL,
    worker    TEXT
) STRICT;
CREATE INDEX onward_queue_ready ON onward_queue (queue, priority DESC, position) WHERE worker IS NULL AND due_at IS NULL;
CREATE INDEX onward_queue_asleep ON onward_queue (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX onward_queue_held ON onward_queue (worker) WHERE worker IS NOT NULL;
CREATE INDEX onward_queue_suspect ON onward_queue (queue) WHERE crashes >= 3;

-- A rowid table on purpose: the payloads of all tasks are appended at the end of one tree, and only the small index
-- (task_id, seq) is touched in many places. WITHOUT ROWID dirtied a page for each task of a commit.
CREATE TABLE onward_journal (
    task_id TEXT NOT NULL,
    seq     INTEGER NOT NULL,
    shift   INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    key     TEXT NOT NULL,
    data    BLOB NOT NULL,
    at      REAL NOT NULL,
    PRIMARY KEY (task_id, seq)
) STRICT;

CREATE TABLE onward_outcomes (
    task_id     TEXT PRIMARY KEY,
    state       TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    finished_at REAL NOT NULL
) STRICT;
CREATE INDEX onward_outcomes_rare ON onward_outcomes (state, task_id) WHERE state <> 'completed';

CREATE TABLE onward_workers (
    id          TEXT PRIMARY KEY,
    lease_until REAL NOT NULL,
    started_at  REAL NOT NULL,
    rate        REAL NOT NULL DEFAULT 0,
    machine     TEXT NOT NULL,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    slots       INTEGER NOT NULL,
    names       TEXT NOT NULL,
    queues      TEXT NOT NULL,
    address     TEXT NOT NULL,
    version     TEXT NOT NULL
) STRICT;

CREATE TABLE onward_handlers (
    name       TEXT PRIMARY KEY,
    schema     BLOB NOT NULL,
    offered_at REAL NOT NULL
) STRICT;
