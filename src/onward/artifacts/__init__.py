"""Artifacts: bytes that tasks leave behind, stored in the database, a folder or a bucket."""
