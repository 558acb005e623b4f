"""Artifacts: bytes that tasks leave behind, in the database or outside of it."""
