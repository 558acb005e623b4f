"""Agents of other frameworks as tasks: one module for each framework, imported only by programs that use it.

`model_steps` has the one shape that a model request of every framework has in the journal.
"""
