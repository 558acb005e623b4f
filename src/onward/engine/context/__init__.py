"""The context: the part of the engine that a handler sees."""
