"""The version of the code of an app: equal for workers with the same code."""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from onward.engine.handlers import Handler

MAX_SOURCE_BYTES = 50_000_000
"""Bytes of source files that are read at most."""


def code_version(handlers: Mapping[str, Handler]) -> str:
    """A short hash of the handlers and of the source files of their packages. Workers use it to tell old code from new; a difference that
    does not matter costs one futile try."""
    hashed = hashlib.blake2b(digest_size=4)
    for name in sorted(handlers):
        function = handlers[name].function
        hashed.update(
            f"{name} {getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}\n".encode()
        )
        for part in _code_objects(function):
            hashed.update(part)
    modules = {str(getattr(handler.function, "__module__", "")) for handler in handlers.values()}
    hashed.update(_hash_sources(frozenset(name.partition(".")[0] for name in modules)))
    return hashed.hexdigest()


@functools.lru_cache(maxsize=16)
def _hash_sources(packages: frozenset[str]) -> bytes:
    hashed, left = hashlib.blake2b(digest_size=16), MAX_SOURCE_BYTES
    for path in _sources(packages):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        left -= len(data)
        if left < 0:
            break
        hashed.update(data)
    return hashed.digest()


def _code_objects(function: object) -> Iterator[bytes]:
    """The compiled code of a function and of the functions in it."""
    stack = [getattr(function, "__code__", None)]
    while stack:
        code = stack.pop()
        if code is None:
            continue
        yield code.co_code + repr(code.co_names).encode()
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                stack.append(constant)
            elif isinstance(constant, str | bytes | int | float | bool | None):
                yield repr(constant).encode()


def _sources(packages: AbstractSet[str]) -> list[Path]:
    """The files of all loaded modules of these packages; of a module without a package, also those of the modules beside it."""
    folders = {
        Path(file).parent for name in packages if (file := _file(name)) and not hasattr(sys.modules[name], "__path__")
    }
    files = {
        Path(file)
        for name in list(sys.modules)
        if (file := _file(name)) and (name.partition(".")[0] in packages or Path(file).parent in folders)
    }
    return sorted(files)


def _file(name: str) -> str | None:
    return getattr(sys.modules.get(name), "__file__", None)
