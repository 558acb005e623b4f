"""Agents of other frameworks as tasks. Each framework has a package, which needs its own extra.

`model_steps` has the one shape that a model request of every framework has in the journal.
"""
