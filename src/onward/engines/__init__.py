"""Engines of others below the same handlers and agents: one package for each engine, behind an extra of its own."""
