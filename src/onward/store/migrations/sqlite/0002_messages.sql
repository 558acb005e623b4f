-- Messages for tasks, children of tasks, and what is asked of people.

ALTER TABLE onward_tasks ADD COLUMN parent TEXT;
ALTER TABLE onward_queue ADD COLUMN parent TEXT;
CREATE INDEX onward_queue_parent ON onward_queue (parent) WHERE parent IS NOT NULL;

-- How many messages a task has got. A settle into waiting compares it, in the same row, with the number that was read.
ALTER TABLE onward_queue ADD COLUMN inbox INTEGER NOT NULL DEFAULT 0;
-- A task that is held may be told to stop: whoever lets go of it leaves it paused.
ALTER TABLE onward_queue ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;
CREATE INDEX onward_queue_doubt ON onward_queue (task_id) WHERE reason = 'in_doubt';

CREATE TABLE onward_inbox (
    task_id TEXT NOT NULL,
    number  INTEGER NOT NULL,
    ref     INTEGER,
    id      TEXT NOT NULL,
    kind    TEXT NOT NULL,
    name    TEXT NOT NULL,
    data    BLOB NOT NULL,
    at      REAL NOT NULL,
    PRIMARY KEY (task_id, number)
) STRICT;
-- The same message twice is one, and of two answers to one question the first counts.
CREATE UNIQUE INDEX onward_inbox_id ON onward_inbox (task_id, id);
CREATE UNIQUE INDEX onward_inbox_ref ON onward_inbox (task_id, ref) WHERE ref IS NOT NULL;

CREATE INDEX onward_journal_asks ON onward_journal (task_id, seq) WHERE kind IN ('question.asked', 'approval.requested');
