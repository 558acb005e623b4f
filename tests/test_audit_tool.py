"""tools/audit.py: an audit that reached no database is no audit."""

from __future__ import annotations

from tools.audit import NOT_AUDITED, VULNERABLE, judge

SOUND = {"name": "rich", "version": "15.0.0", "vulns": []}
SKIPPED = {"name": "apsw", "skip_reason": "Dependency not found on PyPI and could not be audited: apsw (3.54.1.0)"}
BROKEN = {"name": "anyio", "version": "4.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["4.1"]}]}


def test_what_could_not_be_looked_up_is_not_called_sound() -> None:
    assert judge({"base.txt": [SOUND]}) == (0, ["no known vulnerability in base.txt"])
    for audits in ({"base.txt": [SOUND, SKIPPED]}, {"base.txt": None}, {"base.txt": []}):
        status, (line,) = judge(audits)  # type: ignore[arg-type] -- lists of dicts
        assert status == NOT_AUDITED
        assert "the advisory database could not be reached" in line
    status, lines = judge({"base.txt": [SOUND, SKIPPED], "dev.txt": [BROKEN], "docs.txt": [BROKEN]})
    assert (status, lines) == (VULNERABLE, ["anyio 4.0: PYSEC-1, fixed in 4.1"])
