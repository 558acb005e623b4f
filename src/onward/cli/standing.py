"""What of a journal is still open. It lives in `core/standing.py`, where the other doors find it too."""

from __future__ import annotations

from onward.core.standing import Open, Standing, child_name, indent, placed_key, plain_key, question, split_key

__all__ = ["Open", "Standing", "child_name", "indent", "placed_key", "plain_key", "question", "split_key"]
