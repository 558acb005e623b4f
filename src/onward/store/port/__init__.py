"""The ports of the store: `core` is the contract of tasks and journals; each other module is a small port of its own."""
