-- Epochs: the time between two restores of this database.

-- One row for each restore; the last one is the present epoch. Before the first restore there is none. Tasks that were unfinished at
-- `backup_at` may have had effects until `restored_at` that the database does not know. `own_tables` says whether the tables of the
-- application went back together with those of Onward.
CREATE TABLE onward_epochs (
    number      integer PRIMARY KEY,
    id          text NOT NULL,
    backup_at   float8 NOT NULL,
    restored_at float8 NOT NULL,
    own_tables  boolean NOT NULL
);

-- Each restore makes a trigger on every table that calls this for sessions of an earlier epoch. Until the first restore there is none.
CREATE FUNCTION onward_epoch_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the database was restored from a backup' USING ERRCODE = 'OW001';
END $$;
