"""Clients: the verbs of an app, over HTTP, for programs elsewhere; `Client` for code with a loop, `SyncClient` for code without.

Each verb is written once, as a script (`script.py`): a generator that says what to send and how long to wait, and never does it
itself. The two clients differ in who runs the scripts, and in nothing else.
"""
