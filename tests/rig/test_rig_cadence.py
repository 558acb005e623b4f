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


@pytest.mark.slow
def test_it_starts_again_after_a_kill() -> None:
    pytest.importorskip("cadence", reason="the client of Cadence is not installed: pip install 'onward[cadence]'")
    with running(cadence.Cadence(), "no Cadence server") as server:
        server.kill()
        server.start()
        assert server.ready()
