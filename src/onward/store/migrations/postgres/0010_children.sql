-- All children of a task, also those that have ended. Most tasks have no parent.
CREATE INDEX onward_tasks_parent ON onward_tasks (parent, id) WHERE parent IS NOT NULL;

-- Whether some bytes stand in others; on SQLite the store registers it.
CREATE FUNCTION onward_has(bytea, bytea) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT position($2 IN $1) > 0 $$;
