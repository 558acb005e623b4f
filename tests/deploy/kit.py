"""Reads the files of deploy/."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def documents(path: Path) -> list[dict[str, Any]]:
    """The documents of a YAML file."""
    return [found for found in yaml.safe_load_all(path.read_text(encoding="utf-8")) if found]


def manifests() -> dict[str, dict[str, Any]]:
    """The manifests of Kubernetes, as `Kind/name`."""
    folder = DEPLOY / "kubernetes"
    files = [path for path in folder.rglob("*.yaml") if path.name != "kustomization.yaml"]
    found = [manifest for path in files for manifest in documents(path)]
    return {f"{manifest['kind']}/{manifest['metadata']['name']}": manifest for manifest in found}


def compose() -> dict[str, Any]:
    (found,) = documents(DEPLOY / "compose.yaml")
    return found


class Instruction(NamedTuple):
    """An instruction of the Dockerfile, and the stage that it belongs to."""

    stage: str
    name: str
    value: str


def dockerfile() -> list[Instruction]:
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found, stage = [], ""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        name, _, value = line.strip().partition(" ")
        if name == "FROM":
            stage = value.rpartition(" AS ")[2]
        if name:
            found.append(Instruction(stage, name, value))
    return found


def image_environment() -> dict[str, str]:
    """The settings of Onward that the image has."""
    values = [word for found in dockerfile() if found[:2] == ("onward", "ENV") for word in found.value.split()]
    return dict(word.split("=", 1) for word in values if word.startswith("ONWARD_"))


def run_tool(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a tool of the requirements of developers."""
    program = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    assert program is not None, f"{name} is missing; install requirements/dev.txt"
    return subprocess.run([program, *words], capture_output=True, text=True, check=False, cwd=ROOT)
