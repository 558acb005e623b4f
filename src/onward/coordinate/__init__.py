"""Locks and leaders: one module for each coordinator (the store, Redis, etcd), the leases of programs, and the locks of tasks."""
