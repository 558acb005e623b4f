-- Data keys: each seals the payloads of one tenant, or of one value of a label, and is wrapped by a master key that is not in the
-- database. A destroyed key has no `wrapped` any more; its row stays as a tombstone.
CREATE TABLE onward_data_keys (
    id         TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    value      TEXT NOT NULL,
    wrapped    BLOB,
    master     TEXT NOT NULL,
    created_at REAL NOT NULL,
    retired_at REAL,
    erased_at  REAL,
    erased_by  TEXT
) STRICT;
CREATE INDEX onward_data_keys_subject ON onward_data_keys (tenant, value);

-- The tasks of a data key, by the header of their inputs. It is empty where no input is sealed.
CREATE INDEX onward_tasks_data_key ON onward_tasks (substr(input, 1, 12)) WHERE substr(input, 1, 4) = X'014F4501';
