"""A real Kafka, one KRaft node, from the artifacts that the Kafka project publishes to Maven, in the repository's .cache/.

    with Kafka() as kafka:
        confluent_kafka.Producer({"bootstrap.servers": kafka.servers})

Java 17 is needed, and Maven for the first start. A kill -9 keeps the operating system's cache, so what was acknowledged is there
afterwards, as it is with a broker that has replicas.
"""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import socket
import subprocess
import uuid
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from rig import server
from rig.base import PROBE_TIMEOUT_S, Server
from rig.server import Unavailable

VERSION = "4.1.1"
CACHE = Path(__file__).resolve().parents[1] / ".cache"
HOME = CACHE / f"kafka-{VERSION}"
FETCH_TIMEOUT_S = 400
POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>rig</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""


class Kafka(Server):
    """One node, broker and controller. `settings` are lines of its server.properties."""

    title = "Kafka"
    start_timeout_s = 60.0
    not_ready = (OSError, KafkaException)

    def __init__(self, *, settings: dict[str, str] | None = None) -> None:
        super().__init__()
        self.settings = settings or {}

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"kafka://{self.servers}"

    def choose_ports(self) -> None:
        super().choose_ports()
        self._controller_port = server.free_port()

    def topic(self, name: str, *, partitions: int = 4, settings: dict[str, str] | None = None) -> str:
        """Make a topic, and return its name."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings or {})
        admin = AdminClient({"bootstrap.servers": self.servers})  # its work ends with the object
        for made in admin.create_topics([topic]).values():
            made.result(30)
        return name

    def prepare(self) -> None:
        settings = self._settings() | self.settings
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        if not self._data.exists():
            self._format()

    def command(self) -> list[str | Path]:
        return [*_java(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "kafka.Kafka", self._properties]

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PROBE_TIMEOUT_S):
            admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
            return bool(admin.list_topics(timeout=PROBE_TIMEOUT_S).brokers)

    @property
    def _properties(self) -> Path:
        return self.home / "server.properties"

    @property
    def _data(self) -> Path:
        """The storage is formatted for the port of the controller: another port has another directory."""
        return self.home / f"data-{self._controller_port}"

    def _format(self) -> None:
        # An id must not begin with a dash, which the tool takes for an option.
        cluster = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        tool = ["kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", self._properties]
        done = subprocess.run([*_java(), *tool], capture_output=True, text=True, check=False, cwd=self.home)
        if done.returncode != 0:
            raise RuntimeError(f"the storage of Kafka cannot be formatted: {done.stdout}{done.stderr}")

    def _settings(self) -> dict[str, str]:
        listeners = f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": listeners,
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._controller_port}",
            "log.dirs": str(self._data),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
        }


def _java() -> list[str | Path]:
    memory = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return [program(), *memory, "-cp", f"{obtain()}/*"]


def program() -> str:
    """Java. Raises Unavailable."""
    if path := shutil.which("java"):
        return path
    raise Unavailable("no Kafka here: it needs Java 17, and there is no `java` in $PATH")


def obtain() -> Path:
    """The folder of the server's jars, fetched once for all processes of a test run. Raises Unavailable."""
    libs = HOME / "libs"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not libs.exists():
            _fetch(libs)
    return libs


def _fetch(libs: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("no Kafka here: its jars are fetched with Maven, and there is no `mvn` in $PATH")
    work = HOME / f"fetching-{os.getpid()}"
    work.mkdir(parents=True, exist_ok=True)
    (work / "pom.xml").write_text(POM)
    command = [maven, "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=libs"]
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False, timeout=FETCH_TIMEOUT_S)
        if done.returncode != 0 or not (work / "libs").exists():
            raise Unavailable(f"no Kafka here: `{' '.join(command)}` failed: {(done.stdout + done.stderr)[-500:]}")
        (work / "libs").rename(libs)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"no Kafka here: Maven did not fetch it within {FETCH_TIMEOUT_S} s") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
