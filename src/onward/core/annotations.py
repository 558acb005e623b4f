"""Pydantic's checkers for annotations, and secrets in them."""

from __future__ import annotations

import functools
from typing import Any


@functools.lru_cache(maxsize=2048)
def adapter(annotation: Any) -> Any:
    """Pydantic's checker for a type. Imported here because it takes as long as all the rest of Onward to load, and a
    process that only submits plain values never needs it."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter  # noqa: PLC0415

    try:  # bytes as base64: as UTF-8, which is pydantic's usual way, most bytes could not be written
        return TypeAdapter(annotation, config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64"))
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
    return TypeAdapter(annotation)  # a model, a dataclass or a TypedDict has a configuration of its own


@functools.cache
def secret_str_type() -> Any:
    """The type of `secret_str`."""
    from pydantic import SecretStr  # noqa: PLC0415 -- as above

    class Resolved(SecretStr):
        """A SecretStr that stands for a reference to a secret, and not for clear text. Pydantic leaves it as it is."""

    Resolved.__name__ = "SecretStr"
    return Resolved


def secret_str(value: str) -> Any:
    """The value of a secret as functions get it: a SecretStr."""
    return secret_str_type()(value)


@functools.lru_cache(maxsize=2048)
def bears_secrets(annotation: Any) -> bool:
    """Whether values of this type may have secrets in them."""
    return "Secret" in repr(adapter(annotation).core_schema)
