-- The audit log: a number is never written twice, and another table knows the last one.

-- REPLACE deletes a row without the trigger that forbids it. So no entry takes the number of another, or a number before the last one.
CREATE TRIGGER onward_audit_insert BEFORE INSERT ON onward_audit WHEN NEW.number <= (SELECT COALESCE(max(number), 0) FROM onward_audit)
BEGIN SELECT RAISE(ABORT, 'the audit is only ever added to'); END;

-- The last entry, written with every entry. The seal is an HMAC with the key of the log, where it has one. Programs of the version before
-- do not write it: then it names an entry before the last one.
CREATE TABLE onward_audit_end (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    number INTEGER NOT NULL,
    hash   TEXT NOT NULL,
    seal   TEXT
) STRICT;
INSERT INTO onward_audit_end (id, number, hash) VALUES (1, 0, '0000000000000000000000000000000000000000000000000000000000000000');
UPDATE onward_audit_end SET (number, hash) = (SELECT number, hash FROM onward_audit ORDER BY number DESC LIMIT 1)
WHERE EXISTS (SELECT 1 FROM onward_audit);
CREATE TRIGGER onward_audit_end_insert BEFORE INSERT ON onward_audit_end BEGIN SELECT RAISE(ABORT, 'the audit is only ever added to'); END;
CREATE TRIGGER onward_audit_end_update BEFORE UPDATE ON onward_audit_end WHEN NEW.number <= OLD.number
BEGIN SELECT RAISE(ABORT, 'the audit is only ever added to'); END;
CREATE TRIGGER onward_audit_end_delete BEFORE DELETE ON onward_audit_end BEGIN SELECT RAISE(ABORT, 'the audit is only ever added to'); END;
