"""`onward` with a fault in the rotation of keys: `python -m tests.encryption.faulty FAULT encryption rotate …`. The tests of the rotation
must find each of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from onward.cli.main import main
from onward.store.shared.data_keys import DataKeyRow, DataKeys

SKIPS, DESTROYS = "skips", "destroys"
"""It leaves the keys of one person with the old master key; it destroys the data keys that it retires, with which payloads are sealed."""

SKIPPED = "p3"


def plant(fault: str) -> None:
    """Replace a verb of the store in this process."""
    if fault == SKIPS:
        list_ = DataKeys.list

        async def list_some(keys: DataKeys, after: str, limit: int) -> Sequence[DataKeyRow]:
            return [row for row in await list_(keys, after, limit) if row.subject.value != SKIPPED]

        DataKeys.list = list_some  # type: ignore[assignment, method-assign]
    elif fault == DESTROYS:
        retire = DataKeys.retire

        async def retire_and_destroy(keys: DataKeys, tenant: str | None = None, value: str | None = None) -> int:
            count = await retire(keys, tenant, value)
            for row in await keys.of(tenant, value):
                await keys._db.write("data_key_destroy", id=row.id, by="a fault")
            return count

        DataKeys.retire = retire_and_destroy  # type: ignore[method-assign]
    else:
        raise AssertionError(fault)


if __name__ == "__main__":
    plant(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
