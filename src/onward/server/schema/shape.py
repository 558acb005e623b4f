"""The base class of the models of the HTTP API."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict

S = TypeVar("S", bound="Shape")


class Shape(BaseModel):
    """Base class of all request and response models. Unknown fields are refused, so that the caller learns of a misspelled
    name."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True)
