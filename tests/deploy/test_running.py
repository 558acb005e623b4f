"""The commands of the deploy kit run: those of the compose file on a real PostgreSQL, and the steps of the Dockerfile in a folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from onward.core.durations import seconds
from rig.postgres import Postgres
from rig.processes import Child
from rig.server import free_port
from tests.deploy.kit import DEPLOY, ROOT, compose, dockerfile, image_environment, manifests

pytestmark = pytest.mark.slow
START_S = 90.0
SECRET = "/run/secrets/onward_db"


def onward(*words: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onward", *words]
    return subprocess.run(
        command,
        env={**os.environ, **env},
        cwd=DEPLOY / "app",
        capture_output=True,
        text=True,
        check=False,
        timeout=START_S,
    )


def fetch(url: str, headers: Mapping[str, str] = {}, body: Any = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Services:
    """Starts the commands of the compose file as processes of this machine, with free ports and files in place of the secrets."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder, self.ports = folder, {"8765": str(free_port()), "9100": str(_two_free_ports())}
        (folder / "onward_db").write_text(f"{url}\n", encoding="utf-8")

    def words(self, name: str) -> list[str]:
        return [self.ports.get(word, word) for word in compose()["services"][name]["command"]]

    def env(self, name: str) -> dict[str, str]:
        given = {**image_environment(), **compose()["services"][name]["environment"]}
        env = {key: str(value).replace(SECRET, str(self.folder / "onward_db")) for key, value in given.items()}
        return {
            **env,
            "ONWARD_HOSTS": "",
            "ONWARD_PORT": self.ports["8765"],
            "PYTHONPATH": f"{ROOT / 'src'}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, name: str) -> Child:
        return Child.module("onward", *self.words(name), cwd=DEPLOY / "app", env=self.env(name))

    def check(self, name: str) -> None:
        """Run the health check of a service; the server has that of the image."""
        (own,) = [json.loads(value.partition(" CMD ")[2]) for _, kind, value in dockerfile() if kind == "HEALTHCHECK"]
        test = compose()["services"][name].get("healthcheck", {}).get("test", ["CMD", *own])
        words = [sys.executable, *(word.replace(":9100/", f":{self.ports['9100']}/") for word in test[2:])]
        done = subprocess.run(words, env={**os.environ, **self.env(name)}, capture_output=True, text=True, check=False)
        assert (test[:2], done.returncode, done.stderr) == (["CMD", "python"], 0, "")


def _two_free_ports() -> int:
    """The first of two free ports beside each other."""
    while True:
        port = free_port()
        try:
            with socket.socket() as other:
                other.bind(("127.0.0.1", port + 1))
        except OSError:
            continue
        return port


def test_the_services_of_the_compose_file_do_a_task(postgres: Postgres, tmp_path: Path) -> None:
    services = Services(postgres.database("compose"), tmp_path)
    assert onward(*services.words("migrate"), env=services.env("migrate")).returncode == 0
    refused = onward(*services.words("server"), env=services.env("server"))
    assert (refused.returncode, "onward keys create" in refused.stderr) == (2, True)
    scopes = "admin,read,submit,decide"
    made = onward("keys", "create", "--name", "ada", "--scope", scopes, "--json", env=services.env("server"))
    key = {"Authorization": f"Bearer {json.loads(made.stdout)['token']}"}
    with services.start("server") as server, services.start("worker") as worker:
        server.wait_for('"event": "ready"', START_S)
        for _ in range(2):
            worker.wait_for('"event": "ready"', START_S)
        services.check("server")
        services.check("worker")
        address = f"http://127.0.0.1:{services.ports['8765']}"
        assert "<html" in fetch(address)[1], "the console"
        status, accepted = fetch(f"{address}/api/tasks", key, {"task": "order", "input": {"item": "lamp"}})
        assert status == 202, accepted
        task_id = json.loads(accepted)["task_id"]
        assert "shipped lamp" in fetch(f"{address}/api/tasks/{task_id}/result?timeout_s=30", key)[1]
        _probes_of_kubernetes(services)
        for child, name in ((worker, "worker"), (server, "server")):
            child.signal(signal.SIGTERM)
            period = compose()["services"][name]["stop_grace_period"]
            assert child.wait(seconds(period, "stop_grace_period")) == 0


def _probes_of_kubernetes(services: Services) -> None:
    """kubelet asks for the address of the pod, which the server refuses, unless the probe names another host."""
    for kind, port in (("server", "8765"), ("worker", "9100")):
        (container,) = manifests()[f"Deployment/onward-{kind}"]["spec"]["template"]["spec"]["containers"]
        probes = [container[name]["httpGet"] for name in container if name.endswith("Probe")]
        assert len(probes) >= 2
        for probe in probes:
            headers = {"Host": "10.1.2.3"} | {
                header["name"]: header["value"] for header in probe.get("httpHeaders", [])
            }
            status, body = fetch(f"http://127.0.0.1:{services.ports[port]}{probe['path']}", headers)
            assert status == 200, body


def test_the_steps_of_the_image_install_onward_and_the_app(tmp_path: Path) -> None:
    """Each step that a build of a checkout runs before the last stage, in folders below this one; and the health check."""
    stages = ("venv", "from-checkout", "build")
    arguments = {"EXTRAS": "", "APP": ""}
    inside = {"/opt/onward": tmp_path / "opt", "/src": tmp_path / "src", "/app": tmp_path / "app", "/etc/pip.conf": ""}
    here = tmp_path
    for stage, name, value in dockerfile():
        if stage not in stages or name not in {"ARG", "WORKDIR", "COPY", "RUN"}:
            continue
        for variable, given in arguments.items():
            value = value.replace(f"${{{variable}}}", given)
        if name == "ARG":
            variable, _, default = value.partition("=")
            arguments[variable] = default
            continue
        value = re.sub(r"--mount=\S+ ", "", value)
        for path, real in inside.items():
            value = re.sub(rf"(?<![\w./]){re.escape(path)}(?=[\s/;]|$)", str(real), value)
        if name == "WORKDIR":
            here = Path(value)
            here.mkdir()
        elif name == "COPY":
            *sources, target = value.split()
            for source in sources:
                _copy(ROOT / source, here / target)
        else:
            env = {**os.environ, "PATH": f"{tmp_path / 'opt/bin'}:{os.environ['PATH']}"}
            env.pop("PYTHONPATH", None)
            done = subprocess.run(["sh", "-c", value], cwd=here, env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{value}\n{done.stdout}{done.stderr}"
    _serves(tmp_path)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def _serves(folder: Path) -> None:
    """The command of the image serves the example app, and its health check passes."""
    (command,) = [json.loads(value) for _, name, value in dockerfile() if name == "CMD"]
    (check,) = [json.loads(value.partition(" CMD ")[2]) for _, name, value in dockerfile() if name == "HEALTHCHECK"]
    env = {
        **os.environ,
        **image_environment(),
        "ONWARD_DB": f"sqlite:///{folder}/onward.db",
        "ONWARD_PORT": str(free_port()),
    }
    env.pop("PYTHONPATH", None)
    program, python = str(folder / "opt/bin/onward"), str(folder / "opt/bin/python")
    where = subprocess.run(
        [python, "-c", "import onward; print(onward.__file__)"], env=env, capture_output=True, text=True, check=True
    )
    assert where.stdout.startswith(str(folder)), "the installed package, not the checkout"
    subprocess.run(
        [program, "keys", "create", "--name", "ada", "--scope", "read"], env=env, capture_output=True, check=True
    )
    with subprocess.Popen(
        [program, *command], cwd=folder / "app", env=env, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            assert any('"ready"' in line for line in server.stdout)
            subprocess.run([python, *check[1:]], env=env, check=True, timeout=START_S)
        finally:
            server.terminate()
            server.communicate(timeout=START_S)
        assert server.returncode == 0
