"""The base class of the models of the HTTP API."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic._internal._model_construction import ModelMetaclass

S = TypeVar("S", bound="Shape")

_building = threading.RLock()
"""Held while a model is built. pydantic parses the source of the class for the docstrings of its fields, and in Python 3.11 two threads that
parse at once may get `SystemError: AST constructor recursion depth mismatch`."""


class _OneAtATime(ModelMetaclass):
    """Builds one model at a time."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        with _building:
            return super().__new__(cls, *args, **options)


class Shape(BaseModel, metaclass=_OneAtATime):
    """Base class of all request and response models. Unknown fields are refused, so that the caller learns of a misspelled
    name."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True)
