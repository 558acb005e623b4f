"""The worker: it claims tasks, keeps its lease, and does the chores that all workers share."""
