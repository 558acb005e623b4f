"""The page of the API matches the OpenAPI document of the server."""

from __future__ import annotations

from pathlib import Path

from onward.app.application import VERSION
from onward.server.http.app import ROUTES
from onward.server.schema.openapi import document
from rig.reference import page


def test_the_page_matches_the_document() -> None:
    there = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    assert there == page(document(ROUTES, VERSION)), "python -m rig.reference > docs/api.md"


def test_the_names_of_calls_are_unique() -> None:
    names = [call.name for call in ROUTES]
    assert len(set(names)) == len(names)
