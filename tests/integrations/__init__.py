"""Agents of other frameworks as tasks."""
