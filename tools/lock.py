"""Writes requirements/*.txt from pyproject.toml, with hashes, for every platform. `make lock` runs it with uv installed.

Each file is a superset of the one before: `base` is the package alone, `runtime` has all extras for users, `dev` has the tools of
developers, `docs` builds the site, and `audit` has the tools for advisories and the bill of materials.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
USERS = (
    "postgres",
    "fast",
    "openai",
    "prices",
    "s3",
    "serve",
    "mcp",
    "encryption",
    "oidc",
    "redis",
    "nats",
    "rabbitmq",
    "kafka",
    "temporal",
    "pydantic-ai",
    "langgraph",
    "cadence",
    "metrics",
    "otel",
)
LOCKS: dict[str, tuple[str, ...]] = {
    "dev": ("dev",),
    "runtime": USERS,
    "base": (),
    "docs": ("docs",),
    "audit": ("audit",),
}


def main() -> None:
    """Write all files. The larger ones come first, and bind the versions of the others."""
    for name, extras in LOCKS.items():
        bound = ["--constraint", "requirements/dev.txt"] if name != "dev" else []
        command = [
            *(
                sys.executable,
                "-m",
                "uv",
                "pip",
                "compile",
                "--quiet",
                "pyproject.toml",
                "--universal",
                "--python-version",
                "3.11",
            ),
            *(
                "--generate-hashes",
                "--no-header",
                "--no-annotate",
                "--no-strip-extras",
                "--upgrade",
                "--output-file",
                f"requirements/{name}.txt",
            ),
            *[word for extra in extras for word in ("--extra", extra)],
            *bound,
        ]
        subprocess.run(command, check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
