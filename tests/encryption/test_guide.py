"""The code of the guide encryption.md runs: master keys in a key management service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from onward.core.encryption import LocalKeys
from tests.docs.test_guides import code_of


class Kms:
    """A service with one key."""

    def __init__(self) -> None:
        self._keys: Any = None

    async def encrypt(self, key_id: str, data: bytes, context: bytes) -> bytes:
        self._keys = self._keys or LocalKeys({key_id: os.urandom(32)})
        return bytes(await self._keys.wrap(data, context))

    async def decrypt(self, key_id: str, data: bytes, context: bytes) -> bytes:
        return bytes(await self._keys.unwrap(key_id, data, context))


async def work(ctx: Any, text: str) -> str:
    return text


async def test_master_keys_of_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_DB", f"sqlite:///{tmp_path / 'onward.db'}")
    make_app, kms = code_of("encryption.md", "vault.py")["make_app"], Kms()
    async with make_app(kms) as first:
        first.task(work)
        handle = await first.submit("work", "a word")
    async with make_app(kms) as second:
        assert (await second.get(handle.id)).input == "a word"
    assert b"a word" not in (tmp_path / "onward.db").read_bytes()
