"""The models of the HTTP API."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from pydantic import create_model
from pydantic._internal import _fields

from onward.server.schema.shape import Shape


def test_models_are_built_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 fails when two threads parse source at once, and pydantic parses the source of each model."""
    extract, building, most = _fields._update_fields_from_docstrings, set[int](), list[int]()

    def slow(*args: Any, **options: Any) -> None:
        building.add(threading.get_ident())
        time.sleep(0.01)
        most.append(len(building))
        extract(*args, **options)
        building.discard(threading.get_ident())

    monkeypatch.setattr(_fields, "_update_fields_from_docstrings", slow)
    threads = [
        threading.Thread(target=create_model, args=[f"Model{n}"], kwargs={"__base__": Shape, "name": (str, "")})
        for n in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
