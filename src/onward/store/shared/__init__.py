"""The verbs that are the same on both databases, written once over the seam of `database.py`."""
