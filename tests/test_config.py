"""Settings that name a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward import Onward
from onward.config import load
from onward.errors import BadSetting


async def test_the_database_may_be_named_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "onward_db"
    file.write_text(f"sqlite:///{tmp_path}/tasks.db\n", encoding="utf-8")
    assert load({}, {"ONWARD_DB": f"file://{file}"}, tmp_path).db == f"sqlite:///{tmp_path}/tasks.db"
    async with Onward(f"file://{file}") as app:
        assert app.store.where.endswith("tasks.db")
    app = Onward("sqlite://:memory:")
    app.move(f"file://{file}")
    assert app.settings.db == f"sqlite:///{tmp_path}/tasks.db"


def test_a_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(BadSetting, match=r"ONWARD_DB.*/nothing.*a readable file"):
        load({}, {"ONWARD_DB": f"file://{tmp_path}/nothing"}, tmp_path)
    with pytest.raises(BadSetting, match=r"ONWARD_DB.*/empty.*not empty"):
        load({}, {"ONWARD_DB": f"file://{tmp_path}/empty"}, tmp_path)
