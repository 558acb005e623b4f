-- A claim goes by the names of the handlers that its worker has: ready tasks of other handlers are never read. Queue and name are one
-- expression, so that no other index serves a claim, whatever the statistics say of the names.
CREATE INDEX onward_queue_name ON onward_queue ((queue || chr(10) || task), priority DESC, COALESCE(turn, position)) WHERE worker IS NULL AND due_at IS NULL;
