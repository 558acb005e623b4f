-- The audit log: a number is never written twice, and another table knows the last one.

-- No entry takes the number of another, or a number before the last one.
CREATE FUNCTION onward_audit_increases() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.number <= (SELECT COALESCE(max(number), 0) FROM onward_audit) THEN
        RAISE EXCEPTION 'the audit is only ever added to';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER onward_audit_insert BEFORE INSERT ON onward_audit FOR EACH ROW EXECUTE FUNCTION onward_audit_increases();

-- The last entry, written with every entry. The seal is an HMAC with the key of the log, where it has one. Programs of the version before
-- do not write it: then it names an entry before the last one.
CREATE TABLE onward_audit_end (
    id     integer PRIMARY KEY CHECK (id = 1),
    number bigint NOT NULL,
    hash   text NOT NULL,
    seal   text
);
INSERT INTO onward_audit_end (id, number, hash) VALUES (1, 0, '0000000000000000000000000000000000000000000000000000000000000000');
UPDATE onward_audit_end e SET number = a.number, hash = a.hash FROM (SELECT number, hash FROM onward_audit ORDER BY number DESC LIMIT 1) a;
CREATE FUNCTION onward_audit_end_increases() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.number <= OLD.number THEN RAISE EXCEPTION 'the audit is only ever added to'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER onward_audit_end_update BEFORE UPDATE ON onward_audit_end FOR EACH ROW EXECUTE FUNCTION onward_audit_end_increases();
CREATE TRIGGER onward_audit_end_kept BEFORE INSERT OR DELETE OR TRUNCATE ON onward_audit_end FOR EACH STATEMENT EXECUTE FUNCTION onward_only_added_to();

-- Delete keys that have been invalid for so many seconds, and never the newest one: while there is no key, a server takes requests without
-- one. It runs with the rights of the owner, so that no role needs the right to delete a key.
CREATE FUNCTION onward_prune_keys(seconds float8, most integer) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    DELETE FROM onward_keys WHERE id IN (
        SELECT id FROM onward_keys WHERE COALESCE(revoked_at, expires_at) <= onward_now() - GREATEST(seconds, 86400)
        AND id <> (SELECT id FROM onward_keys ORDER BY created_at DESC, id DESC LIMIT 1) ORDER BY created_at, id LIMIT most)
$$;
