"""Tasks on Cadence: the workflow is journal, inbox and clock of a task; an activity runs a stretch of a shift.

`workflow.py` is the workflow, `worker.py` the worker with the activity, and `client.py` the engine as the service sees it.
"""
