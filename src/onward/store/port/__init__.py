"""The contract of the database, for the packages above the store.

`core` has `Store`: the verbs that the engine needs to work on a task, and the small ports that the store hands out as attributes:
`store.keys.add(…)`, `store.outbox.take(…)`. A port of which both databases have the same verbs is the class in `shared/` itself; the
others (`workers`, `follow`) are Protocols here. The other modules have the values that verbs take and return. The promises at the head of
`core` hold for every verb of every port. A store on something else than SQL overrides the verbs of those classes.
"""
