-- Sessions of people who signed in.

-- Of the token in the cookie only its hash is here. A session that has ended is deleted; the audit has its beginning and its end.
CREATE TABLE onward_sessions (
    id           TEXT PRIMARY KEY,
    hash         BLOB NOT NULL,
    person       TEXT NOT NULL,
    name         TEXT NOT NULL,
    roles        TEXT NOT NULL,
    tenant       TEXT,
    created_at   REAL NOT NULL,
    last_used_at REAL NOT NULL,
    idle_s       REAL NOT NULL,
    expires_at   REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX onward_sessions_hash ON onward_sessions (hash);
CREATE INDEX onward_sessions_person ON onward_sessions (person, last_used_at);
