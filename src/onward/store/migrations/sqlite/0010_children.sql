-- All children of a task, also those that have ended. Most tasks have no parent.
CREATE INDEX onward_tasks_parent ON onward_tasks (parent, id) WHERE parent IS NOT NULL;
