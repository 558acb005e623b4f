"""The address of the tasks of an app on Temporal."""

from __future__ import annotations

import dataclasses
import urllib.parse

from onward.errors import BadSetting


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """`temporal://HOST:PORT/NAMESPACE?queue=NAME`."""

    target: str
    namespace: str
    queue: str

    def __str__(self) -> str:
        return f"Temporal {self.target}/{self.namespace}, task queue {self.queue}"

    @classmethod
    def parse(cls, url: str) -> Address:
        """The parts of an address. Raises BadSetting."""
        parts = urllib.parse.urlsplit(url)
        query = urllib.parse.parse_qs(parts.query)
        if parts.scheme != "temporal" or not parts.hostname or query.keys() - {"queue"} or "@" in parts.netloc:
            raise BadSetting("engine", f"{parts.scheme}://…", "temporal://HOST:PORT/NAMESPACE?queue=NAME")
        queue = query.get("queue", ["onward"])[0]
        return cls(f"{parts.hostname}:{parts.port or 7233}", parts.path.strip("/") or "default", queue)
