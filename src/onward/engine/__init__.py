"""The work: a worker claims tasks and does one shift of each; `ctx` is what a handler sees of it."""
