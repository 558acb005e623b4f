"""dead and intakes: list, show, redrive, drop; and an intake as a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from onward import Onward
from onward.store.shared.intakes import IntakeReport
from tests.cli.conftest import Run
from tests.service.letters import bury


@pytest.fixture
def letters(db: str) -> list[str]:
    """Two dead letters of `orders` and one of `mail`; their ids."""

    async def make() -> list[str]:
        async with Onward(db) as app:
            ids = await bury(app, b'{"order": 1}', b"\xff\x00\x1b[31m")
            await app.store.intakes.report(
                IntakeReport("orders", "host:1", "shop/ORDERS", "ship", None, "running", "", 12, 2, 1.5, 3)
            )
            return ids + await bury(app, b"{}", intake="mail", tenant="acme")

    return asyncio.run(make())


def test_intakes_lists_them_with_their_letters(onward: Run, db: str, letters: list[str]) -> None:
    shown = onward("intakes", "--db", db).out
    assert all(word in shown for word in ("orders", "running", "shop/ORDERS", "1.5/s", "mail", "silent"))
    mail, orders = onward("intakes", "--db", db, "--json").json["intakes"]
    assert (orders["name"], orders["lag"], orders["dead"], len(orders["processes"])) == ("orders", 3, 2, 1)
    assert (mail["state"], mail["dead"]) == ("silent", 1)


def test_intakes_of_an_empty_database(onward: Run, db: str) -> None:
    assert "no intakes" in onward("intakes", "--db", db).err
    assert "no dead letters" in onward("dead", "--db", db).err


def test_dead_lists_all_or_those_of_an_intake(onward: Run, db: str, letters: list[str]) -> None:
    listed = onward("dead", "--db", db)
    assert [letter_id in listed.out for letter_id in letters] == [True] * 3
    assert "no task takes" in listed.out
    page = onward("dead", "list", "orders", "--limit", "1", "--db", db, "--json").json
    assert ([letter["id"] for letter in page["letters"]], page["next"]) == ([letters[1]], letters[1])
    rest = onward("dead", "list", "orders", "--cursor", page["next"], "--db", db, "--json").json
    assert ([letter["id"] for letter in rest["letters"]], rest["next"]) == ([letters[0]], None)


def test_dead_show_has_the_whole_letter(onward: Run, db: str, letters: list[str], monkeypatch: Any) -> None:
    shown = onward("dead", "show", letters[0][-8:], "--db", db)
    assert '{"order": 1}' in shown.out
    assert "application/json" in shown.out
    hostile = onward("dead", "show", letters[1], "--db", db)
    assert "\x1b" not in hostile.out
    assert onward("dead", "show", letters[1], "--db", db, "--json").json["encoding"] == "base64"
    written: list[bytes] = []
    monkeypatch.setattr(sys, "stdout", _Bytes(written))
    onward("dead", "show", letters[1], "--body", "--db", db)
    assert b"".join(written) == b"\xff\x00\x1b[31m"


class _Bytes:
    """A stream that keeps the bytes that are written to it."""

    def __init__(self, written: list[bytes]) -> None:
        self.buffer, self._written, self.encoding = self, written, "utf-8"

    def write(self, data: Any) -> None:
        self._written.append(data if isinstance(data, bytes) else data.encode())

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False


def test_redrive_and_drop_by_id_by_intake_and_all(onward: Run, db: str, letters: list[str]) -> None:
    assert onward("dead", "redrive", letters[0][:12], "--db", db).status in {0, 2}, "ids of the same moment are alike"
    assert onward("dead", "redrive", "orders", "--db", db, "--json").json == {"letters": 2}
    assert onward("dead", "redrive", "--all", "--db", db, "--json").json == {"letters": 3}
    assert "redriven" in onward("dead", "--db", db).out
    assert onward("dead", "drop", letters[0], "--db", db).out == "deleted: 1 dead letter\n"
    asked = onward("dead", "drop", "--all", "--db", db)
    assert (asked.status, asked.sentence) == (
        2,
        "onward: 2 dead letters of all intakes would be deleted; say --yes if you want that",
    )
    assert onward("dead", "drop", "mail", "--yes", "--db", db, "--json").json == {"letters": 1}
    assert onward("dead", "drop", "--all", "--yes", "--db", db, "--json").json == {"letters": 1}
    assert onward("dead", "drop", "orders", "--yes", "--db", db).status == 0
    entries = onward("audit", "--db", db, "--json").json["entries"]
    assert {entry["name"].partition(":")[0] for entry in entries} == {"cli"}
    assert [entry["action"] for entry in entries][-3:] == ["drop_letters"] * 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("redrive",), "name an intake or the id"),
        (("drop", "orders", "--all"), "name an intake or the id"),
        (("drop", "nonsense"), "there is no dead letter and no intake 'nonsense'"),
        (("show", "06g0000000000000000000000a"), "there is no dead letter"),
    ],
)
def test_wrong_names_get_a_sentence(
    onward: Run, db: str, letters: list[str], words: tuple[str, ...], sentence: str
) -> None:
    answer = onward("dead", *words, "--db", db)
    assert answer.status in {2, 4}
    assert sentence in answer.sentence


def test_an_app_without_intakes_is_told_so(onward: Run, db: str) -> None:
    assert "has no intakes" in onward("intake", "tests.cli.shop:app", "--db", db).sentence


def test_names_and_ids_are_completed(onward: Run, db: str, letters: list[str], capsys: Any) -> None:
    shown = onward("__complete", "fish", "dead", "redrive", "--db", db, "").out
    assert "mail" in shown
    assert letters[0][-8:] in shown
    assert "orders" in onward("__complete", "fish", "dead", "list", "--db", db, "o").out
    assert json.dumps(letters[2][-4:]) not in shown
