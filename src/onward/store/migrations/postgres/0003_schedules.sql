-- Schedules: what submits tasks by the clock. `mark` changes with every change of a row, so that of several who would turn
-- it to its next tick one does.

CREATE TABLE onward_schedules (
    name     text COLLATE "C" PRIMARY KEY,
    task     text NOT NULL,
    queue    text NOT NULL,
    priority integer NOT NULL,
    cron     text,
    every    float8,
    timezone text NOT NULL,
    missed   text NOT NULL,
    next_at  float8,
    last_at  float8,
    paused   boolean NOT NULL,
    mark     text NOT NULL,
    input    bytea NOT NULL,
    options  bytea NOT NULL
);
CREATE INDEX onward_schedules_next ON onward_schedules (next_at, name) WHERE next_at IS NOT NULL;
