"""Text from outside in a terminal: characters that cannot be seen are shown as escapes, and JSON stays exact."""

from __future__ import annotations

import io
import json
from argparse import Namespace

import pytest
from rich.text import Text

from onward.cli.output.screen import Screen, console, facts
from onward.cli.output.text import machine_readable, readable, safe, visible
from tests.console.test_visible import HIDDEN


@pytest.mark.parametrize("character", HIDDEN)
def test_no_hidden_character_reaches_the_terminal(character: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"pay 10{character} to"
    screen = Screen(Namespace(json=False))
    screen.say(text)
    screen.say(("the name is ", "dim"), text)
    screen.value({"text": text})
    screen.block(facts([("what", Text(text)), ("why", text)]))
    out = capsys.readouterr().out
    assert character not in out
    assert safe(text) in out
    assert json.loads(readable({"text": text})) == {"text": text}


def test_visible_characters_stay(capsys: pytest.CaptureFixture[str]) -> None:
    text = "Grüße, 你好 👍 ⚠️ 1️⃣ שלום\n  two lines"
    Screen(Namespace(json=False)).say(text)
    assert capsys.readouterr().out == f"{text}\n"
    assert visible(f"a\tb\n{text}") == f"a\tb\n{text}"


def test_colours_are_not_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    console(stream).print(Text("red\x1b[2J", "red"))
    assert stream.getvalue().startswith("\x1b[31mred\\x1b[2J\x1b[0m")


def test_json_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(Namespace(json=True)).document({"text": HIDDEN})
    assert json.loads(capsys.readouterr().out) == {"text": HIDDEN}
    assert json.loads(machine_readable(HIDDEN)) == HIDDEN


@pytest.mark.parametrize("text", ["\ufe0f", "acme\ufe0f", "7\ufe0f", "⚠\ufe0f\ufe0f", "⚠\ufe0e", "a\u20e3\ufe0f"])
def test_a_selector_that_selects_nothing_is_shown(text: str) -> None:
    assert safe(text).endswith(("\\ufe0f", "\\ufe0e"))
    assert json.loads(readable([text])) == [text]
    assert readable([text]).isascii() or "⚠" in text or "\u20e3" in text
