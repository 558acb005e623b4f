"""A real Cadence server, one process with SQLite, built with Go from its module, in the repository's .cache/.

    with Cadence() as server:
        Onward(engine=f"{server.url}?tasklist=tests")

Go is needed for the first start, which takes minutes. $ONWARD_CADENCE=HOST:PORT names a server that runs already. Its data is in SQLite
files in its directory: a kill -9 loses nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from rig import server
from rig.base import PROBE_TIMEOUT_S, Server
from rig.install import CACHE, once
from rig.server import Unavailable

MODULE, VERSION = "github.com/uber/cadence", "v1.4.1"
SOURCE = Path(__file__).parent / "cadence_server" / "main.go"
HOME = CACHE / f"cadence-{VERSION}"
BUILD_TIMEOUT_S = 1200
"""Seconds for the download and the compiler, on two slow cores."""
RETRY_AFTER_S = 3600
"""Seconds for which a build that failed is not tried again: other processes of the same test run would wait for it too."""
ATTEMPTS = 5
"""Calls after which a server that runs elsewhere is not there."""
DOMAIN = "onward"
SERVICES = ("frontend", "history", "matching")
HISTORY_SHARDS = 4
RETENTION_S = 86_400


class Cadence(Server):
    """One server with the domain `onward`."""

    title: ClassVar[str] = "Cadence"
    start_timeout_s: ClassVar[float] = 90.0
    not_ready: ClassVar[tuple[type[Exception], ...]] = (OSError, TimeoutError)

    def __init__(self, directory: Path | None = None, port: int | None = None) -> None:
        super().__init__(directory, port)
        self._elsewhere = os.environ.get("ONWARD_CADENCE", "")
        """The address of a server that runs already; tests have no variables of Onward later on."""

    @property
    def address(self) -> str:
        return self._elsewhere or f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"cadence://{self.address}/{DOMAIN}"

    def start(self) -> Self:
        if not self._elsewhere:
            return super().start()
        if not any(self.ready() for _ in range(ATTEMPTS)):  # the first call may make the domain
            raise Unavailable(f"no Cadence server answers at {self._elsewhere}, which ONWARD_CADENCE names")
        return self

    def choose_ports(self) -> None:
        super().choose_ports()
        self._ports = {name: (server.free_port(), server.free_port()) for name in SERVICES}

    def prepare(self) -> None:
        program()
        text = json.dumps(self._settings(), indent=2)  # JSON is YAML
        (self.folder("config") / "base.yaml").write_text(text)

    def command(self) -> Sequence[str | Path]:
        return [program(), self.folder("config")]

    def ready(self) -> bool:
        """Whether the server has the domain, which the first call makes, and all of its services work on it."""
        return asyncio.run(_serves(self.address))

    def _settings(self) -> dict[str, Any]:
        ports = dict(self._ports, frontend=(self.port, self._ports["frontend"][1]))
        data = self.folder("data")

        def store(name: str) -> dict[str, Any]:
            return {"sql": {"pluginName": "sqlite", "databaseName": str(data / name), "maxConns": 1, "maxIdleConns": 1}}

        return {
            "log": {"stdout": True, "level": "error"},
            "persistence": {
                "defaultStore": "default",
                "visibilityStore": "visibility",
                "numHistoryShards": HISTORY_SHARDS,
                "datastores": {"default": store("cadence.db"), "visibility": store("visibility.db")},
            },
            "ringpop": {
                "name": "cadence",
                "bootstrapMode": "hosts",
                "bootstrapHosts": [f"127.0.0.1:{gossip}" for _, gossip in ports.values()],
                "maxJoinDuration": "30s",
            },
            "services": {
                name: {"rpc": {"port": gossip, "grpcPort": port, "bindOnLocalHost": True, "grpcMaxMsgSize": 32 << 20}}
                for name, (port, gossip) in ports.items()
            },
            "clusterGroupMetadata": {
                "failoverVersionIncrement": 10,
                "primaryClusterName": "one",
                "currentClusterName": "one",
                "clusterGroup": {
                    "one": {
                        "enabled": True,
                        "initialFailoverVersion": 0,
                        "rpcAddress": f"127.0.0.1:{self.port}",
                        "rpcTransport": "grpc",
                    }
                },
            },
        }


async def _serves(address: str) -> bool:
    from cadence.client import Client
    from cadence.error import CadenceRpcError

    client = Client(target=address, domain=DOMAIN)
    try:
        await _make_domain(client)
        await _try_services(client)
    except (CadenceRpcError, TimeoutError):
        return False
    else:
        return True
    finally:
        await client.close()


async def _make_domain(client: Any) -> None:
    from cadence.api.v1.service_domain_pb2 import RegisterDomainRequest
    from cadence.error import DomainAlreadyExistsError

    request = RegisterDomainRequest(name=DOMAIN)
    request.workflow_execution_retention_period.FromSeconds(RETENTION_S)
    with contextlib.suppress(DomainAlreadyExistsError):
        await client.domain_stub.RegisterDomain(request, timeout=PROBE_TIMEOUT_S)


async def _try_services(client: Any) -> None:
    """Start a workflow, and take its first task: each service has a cache of domains of its own, which learns of a new one later."""
    from cadence.api.v1.service_worker_pb2 import PollForDecisionTaskRequest
    from cadence.api.v1.tasklist_pb2 import TaskList

    name, second = f"ready-{uuid.uuid4().hex}", datetime.timedelta(seconds=1)
    async with asyncio.timeout(PROBE_TIMEOUT_S):
        await client.start_workflow(
            "ready",
            workflow_id=name,
            task_list=name,
            execution_start_to_close_timeout=second,
            task_start_to_close_timeout=second,
        )
        await client.worker_stub.PollForDecisionTask(
            PollForDecisionTaskRequest(domain=DOMAIN, task_list=TaskList(name=name), identity="ready")
        )


def program() -> Path:
    """The server's program, built once for all processes of a test run. Raises Unavailable."""
    built, failed = HOME / "server", HOME / "failed"
    with once("cadence"):
        if not built.exists() or built.stat().st_mtime < SOURCE.stat().st_mtime:
            if failed.exists() and time.time() - failed.stat().st_mtime < RETRY_AFTER_S:
                raise Unavailable(failed.read_text())
            go = shutil.which("go")
            if go is None:
                raise Unavailable("no Cadence server here: it is built with Go, and there is no `go` in $PATH")
            try:
                _build(go, built)
            except Unavailable as error:
                HOME.mkdir(parents=True, exist_ok=True)
                failed.write_text(f"{error} (to try again within the hour, remove {failed})")
                raise
    return built


def _build(go: str, built: Path) -> None:
    work, end = HOME / "build", time.monotonic() + BUILD_TIMEOUT_S
    work.mkdir(parents=True, exist_ok=True)
    module = json.loads(_run([go, "mod", "download", "-json", f"{MODULE}@{VERSION}"], work, end))
    # The versions are those that Cadence itself is built with.
    own = Path(module["GoMod"]).read_text().replace(f"module {MODULE}\n", "module rig/cadence\n")
    (work / "go.mod").write_text(f"{own}\nrequire {MODULE} {VERSION}\n")
    shutil.copyfile(Path(module["Dir"]) / "go.sum", work / "go.sum")
    (work / "go.sum").chmod(0o644)
    shutil.copyfile(SOURCE, work / "main.go")
    _run([go, "build", "-mod=mod", "-ldflags=-s -w", "-o", "server", "."], work, end)
    (work / "server").replace(built)


def _run(command: list[str], work: Path, end: float) -> str:
    line = " ".join(command)
    environ = os.environ | {"GOWORK": "off"}
    try:
        done = subprocess.run(
            command,
            cwd=work,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=max(end - time.monotonic(), 1),
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"no Cadence server here: it was not built within {BUILD_TIMEOUT_S} s (`{line}`)") from None
    if done.returncode != 0:
        raise Unavailable(f"no Cadence server here: `{line}` failed: {done.stderr.strip()[-500:]}")
    return done.stdout
