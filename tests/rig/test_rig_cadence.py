"""The Cadence server of the rig."""

from __future__ import annotations

from pathlib import Path

import pytest

from rig import cadence
from rig.server import Unavailable
from tests.kit import running


def test_without_go_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cadence, "HOME", tmp_path / "home")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        Unavailable, match=r"no Cadence server here: it is built with Go, and there is no `go` in \$PATH"
    ):
        cadence.program()


def test_a_build_that_failed_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    builds = tmp_path / "builds"
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho one >> {builds}\necho no network >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setattr(cadence, "HOME", tmp_path / "home")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for _ in range(2):
        with pytest.raises(Unavailable, match="failed: no network"):
            cadence.program()
    assert builds.read_text() == "one\n"


@pytest.mark.slow
@pytest.mark.xdist_group("cadence")
def test_it_starts_again_after_a_kill() -> None:
    pytest.importorskip("cadence", reason="the client of Cadence is not installed: pip install 'onward[cadence]'")
    with running(cadence.Cadence(), "no Cadence server") as server:
        server.kill()
        server.start()
        assert server.ready()
