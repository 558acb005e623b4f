"""The files of deploy/ fit the schemas of their tools, name commands and settings that exist, and agree with each other."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from onward.cli.args.parser import build
from onward.config import Settings, variable
from onward.core.durations import seconds
from tests.deploy.kit import DEPLOY, ROOT, compose, dockerfile, documents, image_environment, manifests, run_tool

OWN_VARIABLES = {"ONWARD_APP", "ONWARD_PROCESSES", "ONWARD_IMAGE"}
"""Variables that only the files of deploy/ read."""

WORKLOADS = ("Deployment/onward-server", "Deployment/onward-worker", "Job/onward-migrate")


def pod(name: str) -> dict[str, Any]:
    found: dict[str, Any] = manifests()[name]["spec"]["template"]["spec"]
    return found


def container(name: str) -> dict[str, Any]:
    (found,) = pod(name)["containers"]
    return dict(found)


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────────────


def commands() -> dict[str, list[str]]:
    """Every command of `onward` that the files start."""
    found = {
        f"compose {name}": service["command"] for name, service in compose()["services"].items() if "command" in service
    }
    found |= {name: container(name)["args"] for name in WORKLOADS}
    for unit in (DEPLOY / "systemd").iterdir():
        line = re.search(r"^ExecStart=\S+/onward (.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
        assert line is not None, unit
        found[unit.name] = shlex.split(
            line[1].replace("${ONWARD_APP}", "shop:app").replace("${ONWARD_PROCESSES}", "auto")
        )
    (image,) = [json.loads(value) for _, name, value in dockerfile() if name == "CMD"]
    return found | {"image": image}


def test_the_command_line_knows_every_command() -> None:
    assert len(commands()) == 10
    for words in commands().values():
        build().parse_args(words)
    with pytest.raises(SystemExit):
        build().parse_args(["worker", "shop:app", "--workers", "2"])


def test_every_variable_is_a_setting() -> None:
    settings = {variable(name) for name in Settings.__dataclass_fields__}
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    named = {name for path in files for name in re.findall(r"\bONWARD_[A-Z_]+\b", path.read_text(encoding="utf-8"))}
    assert len(named) > 8
    assert named - settings == OWN_VARIABLES


# ── containers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_linter_of_dockerfiles_has_no_complaint() -> None:
    done = run_tool("hadolint", DEPLOY / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_runs_as_a_user_without_rights_and_is_checked() -> None:
    last = {name: value for stage, name, value in dockerfile() if stage == "onward"}
    assert last["USER"] == "10001:10001"
    assert "/healthz" in last["HEALTHCHECK"]
    assert [
        value for _, name, value in dockerfile() if name == "ARG" and re.search("(?i)password|token|key", value)
    ] == []


def test_the_build_gets_the_files_that_it_copies_and_no_secrets() -> None:
    """Of `.dockerignore`: the last line that fits a path decides."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    rules = [line for line in lines if line and not line.startswith("#")]

    def sent(path: str) -> bool:
        parents = [path, *map(str, Path(path).parents)]
        fits = [
            rule
            for rule in rules
            if any(fnmatch.fnmatch(parent, rule.removeprefix("!").removeprefix("**/")) for parent in parents)
            or (rule.startswith("**/") and fnmatch.fnmatch(Path(path).name, rule.removeprefix("**/")))
        ]
        return bool(fits) and fits[-1].startswith("!")

    copied = [
        "requirements/runtime.txt",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src/onward/config.py",
        "deploy/app/shop.py",
    ]
    assert [path for path in copied if not sent(path)] == []
    secret = [
        ".git/config",
        "deploy/secrets/onward_db",
        "deploy/app/.env",
        "onward.db",
        "tests/kit.py",
        "deploy/app/onward.db-wal",
    ]
    assert [path for path in secret if sent(path)] == []


def test_the_compose_file_fits_its_schema() -> None:
    done = run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")
    assert done.returncode == 0, done.stdout


def test_the_workflows_fit_their_schema() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").iterdir())
    done = run_tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    assert done.returncode == 0, done.stdout


def test_services_start_in_order_and_have_time_to_stop() -> None:
    services = compose()["services"]
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in ("server", "worker"):
        assert services[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
        grace = float(services[name]["environment"].get("ONWARD_GRACE_S", Settings().grace_s))
        assert seconds(services[name]["stop_grace_period"], "stop_grace_period") >= grace + 10
        assert services[name]["read_only"]
        assert services[name]["cap_drop"] == ["ALL"]


# ── Kubernetes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_manifests_fit_the_schemas_of_kubernetes() -> None:
    version = kubernetes_validate.latest_version()
    assert len(manifests()) >= 12
    for manifest in manifests().values():
        kubernetes_validate.validate(manifest, version, strict=True)
    broken = {**manifests()["Service/onward-server"], "spec": {"prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


@pytest.mark.parametrize("folder", ["base", "overlays/example"])
def test_a_kustomization_lists_its_files(folder: str) -> None:
    place = DEPLOY / "kubernetes" / folder
    (listed,) = documents(place / "kustomization.yaml")
    files = {path.name for path in place.glob("*.yaml")} - {"kustomization.yaml"}
    assert {name for name in listed["resources"] if name.endswith(".yaml")} == files
    assert [name for name in listed["resources"] if not (place / name).exists()] == []


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is on few machines")
def test_kustomize_builds_the_overlay() -> None:
    """And the component, which the example leaves out."""
    place = DEPLOY / "kubernetes" / "overlays" / "example"
    done = subprocess.run(["kubectl", "kustomize", str(place)], capture_output=True, text=True, check=True)
    assert done.stdout.count("image: registry.example.com/shop:1.0.0") == len(WORKLOADS)


def test_selectors_find_their_pods() -> None:
    for kind in ("server", "worker"):
        name = f"onward-{kind}"
        labels = manifests()[f"Deployment/{name}"]["spec"]["template"]["metadata"]["labels"]
        for other in ("Deployment", "PodDisruptionBudget"):
            assert manifests()[f"{other}/{name}"]["spec"]["selector"]["matchLabels"] == labels
        assert manifests()[f"NetworkPolicy/{name}"]["spec"]["podSelector"]["matchLabels"] == labels
    assert manifests()["Service/onward-server"]["spec"]["selector"] == {"app.kubernetes.io/component": "server"}
    target = manifests()["HorizontalPodAutoscaler/onward-worker"]["spec"]["scaleTargetRef"]
    assert f"{target['kind']}/{target['name']}" in manifests()


def test_pods_have_time_to_stop_and_few_rights() -> None:
    grace = float(manifests()["ConfigMap/onward"]["data"]["ONWARD_GRACE_S"])
    pause = float(container("Deployment/onward-server")["lifecycle"]["preStop"]["exec"]["command"][1])
    for name in WORKLOADS:
        spec = pod(name)
        assert spec.get("terminationGracePeriodSeconds", 1e9) >= grace + pause + 10
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["enableServiceLinks"] is False, "the variables of services would change settings"
        assert container(name)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container(name)["resources"]["limits"]["memory"]


def test_the_user_and_the_ports_are_those_of_the_image() -> None:
    image = {name: value for stage, name, value in dockerfile() if stage == "onward"}
    assert {f"{pod(name)['securityContext']['runAsUser']}:10001" for name in WORKLOADS} == {image["USER"]}
    ports = {str(port["containerPort"]) for name in WORKLOADS for port in container(name).get("ports", [])}
    assert ports == set(image["EXPOSE"].split())
    assert image_environment()["ONWARD_HOST"] == image_environment()["ONWARD_METRICS_HOST"] == "0.0.0.0"


# ── systemd ──────────────────────────────────────────────────────────────────────────────────────────────────────────

UNITS = ("onward-server.service", "onward-worker@shop.service", "onward-migrate.service")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is on Linux alone, and not in containers")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        source = (DEPLOY / "systemd" / unit.replace("@shop", "@")).read_text(encoding="utf-8")
        (tmp_path / unit).write_text(source.replace("/opt/onward/bin/onward", "/bin/true"), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *[tmp_path / unit for unit in UNITS]],
        capture_output=True,
        text=True,
        check=False,
    )
    own = [line for line in done.stderr.splitlines() if "onward" in line]  # not of the units of this machine
    assert (done.returncode, own) == (0, [])


def test_units_have_time_to_stop() -> None:
    for name in ("onward-server.service", "onward-worker@.service"):
        unit = (DEPLOY / "systemd" / name).read_text(encoding="utf-8")
        grace = re.search(r"ONWARD_GRACE_S=(\d+)", unit)
        stop = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
        assert stop is not None
        assert float(stop[1]) >= float(grace[1] if grace else Settings().grace_s) + 10
