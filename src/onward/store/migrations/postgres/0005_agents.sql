-- What agents keep: contents that records refer to, and the last checkpoint of a journal.

-- Messages and outputs, once each, named by their hash. They belong to a task and go with it.
CREATE TABLE onward_contents (
    task_id text COLLATE "C" NOT NULL,
    id      text COLLATE "C" NOT NULL,
    data    bytea NOT NULL,
    PRIMARY KEY (task_id, id)
);

CREATE INDEX onward_journal_checkpoint ON onward_journal (task_id, seq) WHERE kind = 'checkpoint.saved';
