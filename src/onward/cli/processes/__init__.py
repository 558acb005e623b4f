"""Several processes behind one command: `onward worker --processes N`, `--reload` and `onward dev`.

`supervisor.py` starts the processes, replaces dead ones and ends them. `child.py` is the other side, in each process: it reports to the
supervisor, and ends when the supervisor is gone. `reload.py` notices changed files.
"""
