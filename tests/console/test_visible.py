"""Characters that cannot be seen are shown as escapes wherever the console puts text on the page: in Node, without a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CONSOLE = Path(__file__).parents[2] / "src" / "onward" / "console"
HIDDEN = (
    "\0\x07\x1b\x7f\x85\x9b\u00ad\u034f\u061c\u115f\u180e\u200b\u200c\u200d\u200e\u2028\u202a\u202e\u2060\u2066\u2069\u2800\u3164"
    "\ufe00\ufe0f\ufeff\ufff9\uffa0\U000e0041\U000e007f\U000e0100\U0001d159\U00016fe4\U0001d173"
)
"""Controls, zero widths, directions, fillers, tags, selectors."""
SCRIPT = """
globalThis.Node = class {};
const element = () => Object.assign(new Node(), { texts: [], attributes: {}, append(child) { this.texts.push(child); },
  setAttribute(name, value) { this.attributes[name] = value; } });
globalThis.document = { createElement: element, createTextNode: (text) => text };
const [dom, words] = await Promise.all([import(process.argv[1] + "/dom.js"), import(process.argv[1] + "/words.js")]);
const texts = JSON.parse(process.argv[2]);
console.log(JSON.stringify(texts.map((text) => {
  const made = dom.h("p", { title: text }, [text], text);
  return { texts: made.texts, title: made.attributes.title, editable: words.editable({ text }) };
})));
"""


def run_node(script: str, argument: object) -> Any:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not on this machine")
    command = [node, "--input-type=module", "-e", script, str(CONSOLE), json.dumps(argument)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


BRIEF = """
const words = await import(process.argv[1] + "/words.js");
console.log(JSON.stringify(JSON.parse(process.argv[2]).map((task) => words.briefField(task, "input"))));
"""


def test_a_list_names_erased_values_and_values_that_it_leaves_out() -> None:
    tasks = [
        {"input": None, "left_out": ["input"], "erased": True},
        {"input": None, "left_out": ["input"]},
        {"input": {"n": 1}},
    ]
    assert run_node(BRIEF, tasks) == ["(erased)", "(not shown in the list)", "n: 1"]


def test_invisible_characters_are_escaped() -> None:
    plain = ["Grüße, 你好 👍 ⚠️ 1️⃣ שלום", "two\nlines\tand a tab", "\\u202e as it is"]
    answers = run_node(SCRIPT, [*(f"a{character}b" for character in HIDDEN), *plain])
    for character, answer in zip(HIDDEN, answers, strict=False):
        code = f"{ord(character):04x}"
        escape = f"a\\u{{{code}}}b" if len(code) > 4 else f"a\\u{code}b"
        assert (answer["texts"], answer["title"]) == ([escape, escape], escape)
        editable = str(answer["editable"])
        assert character not in editable
        assert json.loads(editable) == {"text": f"a{character}b"}, "the edited value is exact"
    for text, answer in zip(plain, answers[len(HIDDEN) :], strict=True):
        assert answer["texts"] == [text, text]
