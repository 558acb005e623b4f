-- Groups, their turns, and limits.

-- Whose a task is: a tenant, a service. Most tasks have no group.
ALTER TABLE onward_tasks ADD COLUMN grp text;
ALTER TABLE onward_queue ADD COLUMN grp text;
-- The place of a task with a group within its priority, on the scale of `position`; without one, that is its place.
ALTER TABLE onward_queue ADD COLUMN turn bigint;
-- The limit under which a task is held, or for which it waits.
ALTER TABLE onward_queue ADD COLUMN gate text COLLATE "C";

DROP INDEX onward_queue_ready;
CREATE INDEX onward_queue_ready ON onward_queue (queue, priority DESC, COALESCE(turn, position)) WHERE worker IS NULL AND due_at IS NULL;
-- All below are empty where nobody uses groups and limits.
CREATE INDEX onward_queue_group ON onward_queue (queue, grp, priority, COALESCE(turn, position)) WHERE grp IS NOT NULL AND worker IS NULL;
CREATE INDEX onward_queue_quota ON onward_queue (gate, due_at, priority DESC, COALESCE(turn, position)) WHERE reason = 'quota';
CREATE INDEX onward_queue_gate ON onward_queue (gate, queue) WHERE gate IS NOT NULL AND worker IS NOT NULL;

-- What workers said when they started: for each group of a task, or for a queue. `pace` is the seconds between two starts.
CREATE TABLE onward_limits (
    kind        text NOT NULL,
    name        text COLLATE "C" NOT NULL,
    concurrency integer,
    pace        float8,
    burst       integer,
    PRIMARY KEY (name, kind)
);

-- When a bucket that fills at its pace is full again. A missing one is full.
CREATE TABLE onward_buckets (
    gate    text COLLATE "C" PRIMARY KEY,
    full_at float8 NOT NULL
);
CREATE INDEX onward_buckets_full ON onward_buckets (full_at);
