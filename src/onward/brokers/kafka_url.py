"""The URL of a Kafka cluster as settings of its client, for the way in and the way out."""

from __future__ import annotations

import urllib.parse
from typing import Any

from onward.errors import BadSetting


def connection_settings(url: str) -> dict[str, Any]:
    """The servers and the login of `kafka://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…]`. Raises BadSetting."""
    login, at, servers = urllib.parse.urlsplit(url).netloc.rpartition("@")
    if not servers:
        raise BadSetting("the URL of a broker", "kafka://…", "kafka://HOST:PORT, more hosts with commas between them")
    settings: dict[str, Any] = {"bootstrap.servers": servers}
    if at:
        user, _, password = login.partition(":")
        settings |= {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": urllib.parse.unquote(user),
            "sasl.password": urllib.parse.unquote(password),
        }
    return settings
