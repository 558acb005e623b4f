"""Which tenant's rows a reader may see.

The parameter `whose` means the same in every port: the name of a tenant; "" for rows without a tenant; None for all rows.
"""

from __future__ import annotations

from typing import Any


def seen_by(whose: str | None) -> dict[str, Any]:
    """The parameters of every statement that filters by tenant."""
    return {"tenant": whose, "of_all": whose is None}
