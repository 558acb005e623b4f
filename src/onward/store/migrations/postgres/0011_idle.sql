-- A claim goes by the names of the handlers that its worker has: ready tasks of other handlers are never read.
CREATE INDEX onward_queue_name ON onward_queue (queue, task, priority DESC, COALESCE(turn, position)) WHERE worker IS NULL AND due_at IS NULL;
