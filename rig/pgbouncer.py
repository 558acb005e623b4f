"""A real PgBouncer in front of a PostgreSQL: from $PATH, else Debian's package unpacked into the repository's .cache/.

    with PgBouncer(postgres.url) as bouncer:
        connect(bouncer.url)        # each transaction may land on another backend

Nothing is installed and root is not needed. This PgBouncer gives out backends round robin (by default it gives the one used
last): code that relies on the state of a session fails at once, not once a week.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

import psycopg

from rig import server
from rig.base import Server
from rig.install import CACHE
from rig.server import Unavailable

PoolMode = Literal["session", "transaction", "statement"]


class PgBouncer(Server):
    """One PgBouncer for all databases of the PostgreSQL at `postgres_url`; `settings` go into its ini file."""

    title = "PgBouncer"
    never_root = True
    not_ready = (OSError, psycopg.OperationalError)

    def __init__(
        self, postgres_url: str, pool_mode: PoolMode = "transaction", settings: dict[str, str] | None = None
    ) -> None:
        super().__init__()
        self.postgres_url = postgres_url
        self.pool_mode = pool_mode
        self.settings = settings or {}

    @property
    def url(self) -> str:
        return self.url_for(self.postgres_url)

    def url_for(self, url: str) -> str:
        """The same URL, through PgBouncer."""
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{parts.username or 'postgres'}@127.0.0.1:{self.port}"))

    def prepare(self) -> None:
        self._program = obtain()
        if server.guise().uid is not None:
            self._program = _copy(self._program, self.home)
        self._configure(self.home)

    def command(self) -> Sequence[str | Path]:
        return [self._program, self.home / "ini"]

    def environ(self) -> Mapping[str, str]:
        return _environment(self._program)

    def ready(self) -> bool:
        with psycopg.connect(self.url, connect_timeout=5, autocommit=True) as connection:
            connection.execute("SELECT 1")
        return True

    def _configure(self, home: Path) -> None:
        parts = urlsplit(self.postgres_url)
        user = parts.username or "postgres"
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(home / "users"),
            "admin_users": user,
            "pool_mode": self.pool_mode,
            "server_round_robin": "1",
            "max_client_conn": "500",
            "ignore_startup_parameters": "extra_float_digits",
        } | self.settings
        lines = ["[databases]", f"* = host={parts.hostname} port={parts.port or 5432}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        (home / "ini").write_text("\n".join(lines) + "\n")
        (home / "users").write_text(f'"{user}" ""\n')


def obtain() -> Path:
    """The program: one that is installed, else the unpacked one. Raises Unavailable, with the reason."""
    installed = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    if installed:
        return Path(installed)
    unpacked = CACHE / "pgbouncer"
    if not unpacked.exists():
        _unpack(unpacked)
    return unpacked / "usr/sbin/pgbouncer"


def version() -> tuple[int, ...]:
    """Prepared statements survive the transaction mode from (1, 21) on, given the setting `max_prepared_statements`."""
    program = obtain()
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, env=_environment(program))
    return tuple(map(int, re.findall(r"\d+", done.stdout.splitlines()[0])))


def _unpack(target: Path) -> None:
    """Fetches the Debian package, and those of libraries that this machine has not, without installing any."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unavailable("no pgbouncer in $PATH, and no apt-get and dpkg-deb to fetch it with")
    try:
        CACHE.mkdir(exist_ok=True)
        (CACHE / ".gitignore").write_text("*\n")
        work = Path(tempfile.mkdtemp(dir=CACHE, prefix="unpacking-"))
    except OSError as error:
        raise Unavailable(f"no pgbouncer in $PATH, and nowhere to unpack one: {error}") from error
    try:
        tree = work / "tree"
        _download(["pgbouncer"], work, tree)
        if _lacks_libraries(tree):
            _download(_libraries_not_installed(work), work, tree)
        if lacking := _lacks_libraries(tree):
            raise Unavailable(f"the unpacked pgbouncer lacks libraries: {', '.join(lacking)}")
        tree.rename(target)
    except OSError:
        if not target.exists():  # else another process was quicker
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(packages: Sequence[str], work: Path, tree: Path) -> None:
    try:
        _command("apt-get", "download", *packages, cwd=work)
    except Unavailable:
        # No package lists, as in a fresh container. Lists of our own need no root.
        private = _private_lists(work)
        _command("apt-get", *private, "update", cwd=work)
        _command("apt-get", *private, "download", *packages, cwd=work)
    for package in work.glob("*.deb"):
        _command("dpkg-deb", "-x", package.name, str(tree), cwd=work)


def _private_lists(work: Path) -> list[str]:
    (work / "lists/partial").mkdir(parents=True, exist_ok=True)
    (work / "apt/archives/partial").mkdir(parents=True, exist_ok=True)
    return ["-o", f"Dir::State::lists={work / 'lists'}", "-o", f"Dir::Cache={work / 'apt'}"]


def _libraries_not_installed(work: Path) -> list[str]:
    (package,) = work.glob("pgbouncer_*.deb")
    wanted = re.findall(r"\blib[\w.+-]+", _command("dpkg-deb", "-f", str(package), "Depends"))
    known = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    return [package for package in wanted if f"installed {package}" not in known.stdout.splitlines()]


def _lacks_libraries(tree: Path) -> list[str]:
    program = tree / "usr/sbin/pgbouncer"
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False, env=_environment(program))
    return re.findall(r"(\S+) => not found", done.stdout)


def _environment(program: Path) -> dict[str, str]:
    """Ours, and for an unpacked program the libraries unpacked with it."""
    root = _unpacked_root(program)
    if root is None:
        return dict(os.environ)
    libraries = [*root.glob("usr/lib/*/*.so.*"), *root.glob("lib/*/*.so.*")]
    places = sorted({str(library.parent) for library in libraries})
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, [*places, os.environ.get("LD_LIBRARY_PATH")]))}


def _unpacked_root(program: Path) -> Path | None:
    """The directory into which its package was unpacked; None for an installed program."""
    root = program.parents[2]
    return root if root / "usr/sbin/pgbouncer" == program and root != Path("/") else None


def _copy(program: Path, home: Path) -> Path:
    """A copy of the program that the user `nobody` can read."""
    root = _unpacked_root(program)
    if root is None:
        return program
    shutil.copytree(root, home / "tree", dirs_exist_ok=True)
    return home / "tree" / program.relative_to(root)


def _command(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
