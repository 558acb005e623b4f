"""The contract of the database, for the packages above the store.

`core` has `Store`: the verbs that the engine needs to work on a task. Each other module is a small port of its own, which the store hands
out as an attribute: `store.keys.add(…)`, `store.outbox.take(…)`. The promises at the head of `core` hold for every verb of every port.
"""
