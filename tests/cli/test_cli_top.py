"""top: the screen at three sizes; it redraws, quits on q, and restores the terminal."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run, Waiting, controls
from tests.cli.terminal import terminal

SIZES = [(80, 24), (120, 40), (200, 50)]


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "rows"), SIZES, ids=str)
def test_a_frame_fits_and_has_it_all(columns: int, rows: int, onward: Run, crew: str, waiting: Waiting):
    asks = waiting("approval", "ship", '"\\u001b[31m 漢字 \\u202e"')
    runs = waiting("running", "slow")
    with terminal("top", "--db", crew, columns=columns, rows=rows) as screen:
        page = screen.look(
            lambda page: "q quits" in page and runs[-8:] in page and f"onward approve {asks[-8:]}" in page
        )
        lines = page.splitlines()
        assert len(lines) == rows
        assert lines[0].startswith("onward top  SQLite file")
        assert lines[1].startswith("1 worker · ")
        assert "pending" in lines[2]
        assert lines[-1] == "q quits"
        assert "WAITS FOR A PERSON" in page
        assert "QUEUE" in page
        assert "WORKER" in page
        assert "\\x1b[31m" in page or columns == 80, "escaped, and so harmless"
        heads = [line for line in lines if "WAITS FOR A PERSON" in line]
        assert ("QUEUE" in heads[0]) == (columns >= 140), "two halves where there is room for them"
        screen.type("x")
        screen.type("q")
        assert screen.ends() == 0
        assert screen.as_it_was
        assert "\x1b[?1049l" in screen.text, "back on the page where it was typed"
    for task_id in (asks, runs):
        onward("cancel", task_id, "--db", crew)


def test_it_is_drawn_again_when_the_terminal_changes(crew: str):
    with terminal("top", "--every", "60", "--db", crew, columns=120, rows=30) as screen:
        screen.look(lambda page: "q quits" in page)
        screen.resize(90, 20)
        page = screen.look(lambda page: len(page.splitlines()) == 20 and page.endswith("q quits"))
        assert max(map(len, page.splitlines())) <= 90
        screen.interrupt()
        assert screen.ends() == 130
        assert screen.as_it_was


def test_once_is_one_frame_on_a_terminal_and_in_a_pipe(onward: Run, crew: str):
    with terminal("top", "--once", "--db", crew, columns=80) as screen:
        assert screen.status() == 0
        assert "\x1b[?1049h" not in screen.text
        assert "1 worker" in screen.page
    output = onward("top", "--db", crew)
    assert output.status == 0
    assert not controls(output.out)
    assert max(map(len, output.out.splitlines())) <= 100


def test_top_without_tasks(onward: Run, db: str):
    output = onward("top", "--db", db)
    assert "0 workers" in output.out
    assert "no unfinished tasks: onward submit NAME INPUT" in output.out
    assert onward("top", "--json", "--db", db).json["people"] == []


@pytest.mark.slow
def test_tasks_that_wait_for_people_have_their_command(onward: Run, crew: str, waiting: Waiting):
    question, doubt = waiting("question", "choose"), waiting("in_doubt", "charge")
    people = onward("top", "--json", "--db", crew).json["people"]
    waits = {wait["task_id"]: wait for wait in people}
    assert waits[question]["command"].startswith(f"onward answer {question[-8:]}.")
    assert waits[doubt]["command"] == f"onward resolve {doubt[-8:]}"
    assert [wait["since"] for wait in people] == sorted(wait["since"] for wait in people)
    for task_id in (question, doubt):
        onward("cancel", task_id, "--db", crew)
