-- Intakes: messages of brokers that become tasks.

-- Messages that could not become one. `data` is the headers as JSON, a line break, and the body.
-- `reason` may quote the message, and is sealed as `data` is.
CREATE TABLE onward_dead_letters (
    id         TEXT NOT NULL PRIMARY KEY,
    intake     TEXT NOT NULL,
    identity   TEXT NOT NULL,
    tenant     TEXT,
    reason     BLOB NOT NULL,
    position   TEXT NOT NULL,
    sent_id    TEXT NOT NULL,
    size       INTEGER NOT NULL,
    data       BLOB NOT NULL,
    attempts   INTEGER NOT NULL,
    at         REAL NOT NULL,
    redrive_at REAL,
    held_until REAL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX onward_dead_letters_identity ON onward_dead_letters (intake, identity);
CREATE INDEX onward_dead_letters_intake ON onward_dead_letters (intake, id, tenant);
CREATE INDEX onward_dead_letters_redrive ON onward_dead_letters (intake, redrive_at) WHERE redrive_at IS NOT NULL;

-- What each process says about its intakes.
CREATE TABLE onward_intakes (
    name       TEXT NOT NULL,
    process    TEXT NOT NULL,
    source     TEXT NOT NULL,
    target     TEXT NOT NULL,
    tenant     TEXT,
    state      TEXT NOT NULL,
    detail     TEXT NOT NULL,
    taken      INTEGER NOT NULL,
    dead       INTEGER NOT NULL,
    rate       REAL NOT NULL,
    lag        INTEGER,
    started_at REAL NOT NULL,
    seen_at    REAL NOT NULL,
    PRIMARY KEY (name, process)
) STRICT, WITHOUT ROWID;
