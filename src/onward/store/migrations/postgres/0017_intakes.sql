-- Intakes: messages of brokers that become tasks.

-- Messages that could not become one. `data` is the headers as JSON, a line break, and the body.
-- `reason` may quote the message, and is sealed as `data` is.
CREATE TABLE onward_dead_letters (
    id         text COLLATE "C" PRIMARY KEY,
    intake     text COLLATE "C" NOT NULL,
    identity   text COLLATE "C" NOT NULL,
    tenant     text COLLATE "C",
    reason     bytea NOT NULL,
    position   text NOT NULL,
    sent_id    text NOT NULL,
    size       bigint NOT NULL,
    data       bytea NOT NULL,
    attempts   int NOT NULL,
    at         float8 NOT NULL,
    redrive_at float8,
    held_until float8
);
CREATE UNIQUE INDEX onward_dead_letters_identity ON onward_dead_letters (intake, identity);
CREATE INDEX onward_dead_letters_intake ON onward_dead_letters (intake, id, tenant);
CREATE INDEX onward_dead_letters_redrive ON onward_dead_letters (intake, redrive_at) WHERE redrive_at IS NOT NULL;

-- What each process says about its intakes.
CREATE TABLE onward_intakes (
    name       text COLLATE "C" NOT NULL,
    process    text COLLATE "C" NOT NULL,
    source     text NOT NULL,
    target     text NOT NULL,
    tenant     text COLLATE "C",
    state      text NOT NULL,
    detail     text NOT NULL,
    taken      bigint NOT NULL,
    dead       bigint NOT NULL,
    rate       float8 NOT NULL,
    lag        bigint,
    started_at float8 NOT NULL,
    seen_at    float8 NOT NULL,
    PRIMARY KEY (name, process)
);
