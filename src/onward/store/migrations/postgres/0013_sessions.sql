-- Sessions of people who signed in.

-- Of the token in the cookie only its hash is here. A session that has ended is deleted; the audit has its beginning and its end.
CREATE TABLE onward_sessions (
    id           text COLLATE "C" PRIMARY KEY,
    hash         bytea NOT NULL,
    person       text COLLATE "C" NOT NULL,
    name         text NOT NULL,
    roles        text NOT NULL,
    tenant       text COLLATE "C",
    created_at   float8 NOT NULL,
    last_used_at float8 NOT NULL,
    idle_s       float8 NOT NULL,
    expires_at   float8 NOT NULL
);
CREATE UNIQUE INDEX onward_sessions_hash ON onward_sessions (hash);
CREATE INDEX onward_sessions_person ON onward_sessions (person, last_used_at);
