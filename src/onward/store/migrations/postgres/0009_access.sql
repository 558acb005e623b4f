-- Whose tasks are, who may ask, and who did what.

-- The tenant of a task; none for all who name none. The index is empty where nobody has a tenant.
ALTER TABLE onward_tasks ADD COLUMN tenant text COLLATE "C";
CREATE INDEX onward_tasks_tenant ON onward_tasks (tenant, id) WHERE tenant IS NOT NULL;
-- Children belong to the tenant of their parent, whoever submits them, and whatever version that is. (On SQLite an
-- insert takes half as long again with a trigger, and one machine seldom has workers of two versions: there the statement does it.)
CREATE FUNCTION onward_inherit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE whose text;
BEGIN
    SELECT p.tenant INTO whose FROM onward_tasks p WHERE p.id = NEW.parent;
    IF FOUND THEN NEW.tenant := whose; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER onward_tasks_inherit BEFORE INSERT ON onward_tasks FOR EACH ROW WHEN (NEW.parent IS NOT NULL) EXECUTE FUNCTION onward_inherit();

-- Keys. Of the key itself only its hash is here. A key is revoked, never deleted.
CREATE TABLE onward_keys (
    id           text COLLATE "C" PRIMARY KEY,
    hash         bytea NOT NULL,
    name         text NOT NULL,
    tenant       text COLLATE "C",
    scopes       text NOT NULL,
    agent        text,
    created_at   float8 NOT NULL,
    expires_at   float8,
    revoked_at   float8,
    last_used_at float8
);

-- The audit: who did what to what. Each entry has the hash of the one before it, and none is ever changed.
CREATE TABLE onward_audit (
    number  bigint PRIMARY KEY,
    at      float8 NOT NULL,
    tenant  text COLLATE "C",
    key     text,
    name    text NOT NULL,
    action  text NOT NULL,
    subject text NOT NULL,
    data    bytea NOT NULL,
    before  text NOT NULL,
    hash    text NOT NULL
);
CREATE INDEX onward_audit_tenant ON onward_audit (tenant, number) WHERE tenant IS NOT NULL;
CREATE FUNCTION onward_only_added_to() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit is only ever added to';
END $$;
CREATE TRIGGER onward_audit_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON onward_audit FOR EACH STATEMENT EXECUTE FUNCTION onward_only_added_to();
