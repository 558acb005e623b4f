"""What the commands ask: the database (`local.py`) or, with --url, a server (`remote.py`).

Both have the verbs of `AuthorizedService`, with the same arguments, results and errors: it is what HTTP and MCP call, too. So a command is
written once. `target.py` reads --url and the key.
"""
