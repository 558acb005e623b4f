-- Rules for approvals: who asked, and the votes so far.

-- Principals that resumed a task, or sent it something. (Those that submitted or forked it are in its options.)
CREATE TABLE onward_askers (
    task_id TEXT NOT NULL,
    asker   TEXT NOT NULL,
    at      REAL NOT NULL,
    PRIMARY KEY (task_id, asker)
) STRICT, WITHOUT ROWID;

-- The principal that created a key over HTTP.
ALTER TABLE onward_keys ADD COLUMN owner TEXT;

-- Votes are messages; `name` is the number of the record of the approval. The index is empty where no approval has a rule.
CREATE INDEX onward_inbox_votes ON onward_inbox (task_id, number) WHERE kind = 'vote';
