"""Tasks on Temporal: the workflow is journal, inbox and clock of a task; an activity runs a stretch of a shift.

`workflow.py` is the workflow, `worker.py` the worker with the activity, and `client.py` the engine as the service sees it. Shared with other
engines are `engines/session.py`, a shift in the memory of a worker, and `engines/wire.py`, the values that go between them.
"""
