"""The agent: a handler like any other, which asks a model what to do next."""
