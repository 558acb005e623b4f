-- Schedules: what submits tasks by the clock. `mark` changes with every change of a row, so that of several who would turn
-- it to its next tick one does.

CREATE TABLE onward_schedules (
    name     TEXT PRIMARY KEY,
    task     TEXT NOT NULL,
    queue    TEXT NOT NULL,
    priority INTEGER NOT NULL,
    cron     TEXT,
    every    REAL,
    timezone TEXT NOT NULL,
    missed   TEXT NOT NULL,
    next_at  REAL,
    last_at  REAL,
    paused   INTEGER NOT NULL,
    mark     TEXT NOT NULL,
    input    BLOB NOT NULL,
    options  BLOB NOT NULL
) STRICT;
CREATE INDEX onward_schedules_next ON onward_schedules (next_at, name) WHERE next_at IS NOT NULL;
