"""A framework that is missing, too old or too new: each integration says so, and how to install another version."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onward.errors import UsageError
from onward.integrations import versions
from onward.integrations.claude import OnwardSessionStore
from onward.testing import memory_app

ROOT = Path(__file__).parents[2]


def imports(name: str) -> Callable[[], Any]:
    return lambda: importlib.import_module(
        f"onward.integrations.{name}.__init__"
    )  # a module of its own: it runs in each test


INTEGRATIONS = {
    "pydantic-ai-slim": ("pydantic-ai", imports("pydantic_ai")),
    "openai-agents": ("openai-agents", imports("openai_agents")),
    "langgraph": ("langgraph", imports("langgraph")),
    "claude-agent-sdk": ("claude", lambda: OnwardSessionStore(memory_app())),
}


@pytest.mark.parametrize("package", INTEGRATIONS)
def test_a_version_that_does_not_fit_says_so(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    extra, use = INTEGRATIONS[package]
    for version, age in (("0.1", "too old"), ("99.0", "newer than this version of Onward knows")):
        monkeypatch.setattr(versions.importlib.metadata, "version", lambda _package, version=version: version)
        with pytest.raises(UsageError, match=rf"{package} {version} is {age}: .*; pip install 'onward\[{extra}\]'"):
            use()


@pytest.mark.parametrize("package", INTEGRATIONS)
def test_a_missing_framework_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    extra, use = INTEGRATIONS[package]
    monkeypatch.setattr(versions.importlib.metadata, "version", missing)
    with pytest.raises(ImportError, match=rf"^{package} is not installed; pip install 'onward\[{extra}\]'$"):
        use()


def test_the_versions_are_those_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    source = "".join(path.read_text() for path in (ROOT / "src/onward/integrations").rglob("*.py"))
    checks = re.findall(r'check_version\("(.+?)", "(.+?)", "(.+?)", "(.+?)"\)', source)
    assert len(checks) == 5
    for package, least, below, extra in checks:
        assert f"{package}>={least},<{below}" in extras[extra]
