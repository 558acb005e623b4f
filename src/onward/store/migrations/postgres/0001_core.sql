-- The four tables of a task, the workers, and the handlers that workers offer. Times are seconds since 1970 (float8), so
-- that both stores keep the same numbers; 'Infinity' is a due time that only somebody can move.

-- The database's clock. Everything that compares times calls it, and it is inlined; tests replace it to move time.
CREATE FUNCTION onward_now() RETURNS float8 LANGUAGE sql STABLE AS $$ SELECT extract(epoch FROM now())::float8 $$;

CREATE TABLE onward_tasks (
    id          text COLLATE "C" PRIMARY KEY,
    task        text NOT NULL,
    queue       text NOT NULL,
    priority    integer NOT NULL,
    created_at  float8 NOT NULL,
    key         text,
    fingerprint text NOT NULL,
    input       bytea NOT NULL,
    options     bytea NOT NULL
);
CREATE UNIQUE INDEX onward_tasks_key ON onward_tasks (key) WHERE key IS NOT NULL;

-- Narrow and short: unfinished tasks only. Rows come and go all day, so vacuum has to come by often.
CREATE TABLE onward_queue (
    task_id   text COLLATE "C" PRIMARY KEY,
    position  bigint GENERATED ALWAYS AS IDENTITY,
    due_at    float8,
    priority  integer NOT NULL,
    attempt   integer NOT NULL DEFAULT 1,
    crashes   integer NOT NULL DEFAULT 0,
    queue     text NOT NULL,
    task      text NOT NULL,
    reason    text NOT NULL,
    worker    text COLLATE "C"
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX onward_queue_ready ON onward_queue (queue, priority DESC, position) WHERE worker IS NULL AND due_at IS NULL;
CREATE INDEX onward_queue_asleep ON onward_queue (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX onward_queue_held ON onward_queue (worker) WHERE worker IS NOT NULL;
CREATE INDEX onward_queue_suspect ON onward_queue (queue) WHERE crashes >= 3;

CREATE TABLE onward_journal (
    task_id text COLLATE "C" NOT NULL,
    seq     integer NOT NULL,
    shift   integer NOT NULL,
    kind    text NOT NULL,
    key     text NOT NULL,
    data    bytea NOT NULL,
    at      float8 NOT NULL,
    PRIMARY KEY (task_id, seq)
);

CREATE TABLE onward_outcomes (
    task_id     text COLLATE "C" PRIMARY KEY,
    state       text NOT NULL,
    attempt     integer NOT NULL,
    seq         integer NOT NULL,
    finished_at float8 NOT NULL
);
-- Nearly all tasks complete: those are found by walking the primary key, the others by this.
CREATE INDEX onward_outcomes_rare ON onward_outcomes (state, task_id) WHERE state <> 'completed';

CREATE TABLE onward_workers (
    id          text COLLATE "C" PRIMARY KEY,
    lease_until float8 NOT NULL,
    started_at  float8 NOT NULL,
    rate        float8 NOT NULL DEFAULT 0,
    machine     text NOT NULL,
    host        text NOT NULL,
    pid         integer NOT NULL,
    slots       integer NOT NULL,
    names       text NOT NULL,
    queues      text NOT NULL,
    address     text NOT NULL,
    version     text NOT NULL
);

CREATE TABLE onward_handlers (
    name       text COLLATE "C" PRIMARY KEY,
    schema     bytea NOT NULL,
    offered_at float8 NOT NULL
);
