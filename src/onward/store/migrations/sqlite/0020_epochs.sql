-- Epochs: the time between two restores of this database.

-- One row for each restore; the last one is the present epoch. Before the first restore there is none. Tasks that were unfinished at
-- `backup_at` may have had effects until `restored_at` that the database does not know. `own_tables` says whether the tables of the
-- application went back together with those of Onward.
CREATE TABLE onward_epochs (
    number      INTEGER PRIMARY KEY,
    id          TEXT NOT NULL,
    backup_at   REAL NOT NULL,
    restored_at REAL NOT NULL,
    own_tables  INTEGER NOT NULL
) STRICT;
