"""Agents of other frameworks as tasks. Each module needs its own extra."""
