"""The coordinator that the setting `coordinator` names."""

from __future__ import annotations

from collections.abc import Callable

from onward.coordinate.etcd import EtcdCoordinator
from onward.coordinate.port import Coordinator
from onward.coordinate.redis import RedisCoordinator
from onward.errors import BadSetting

STORE = "store"
SCHEMES: dict[str, Callable[[str], Coordinator]] = {
    "redis": RedisCoordinator,
    "rediss": RedisCoordinator,
    "valkey": RedisCoordinator,
    "etcd": EtcdCoordinator,
    "etcds": EtcdCoordinator,
}


def open_coordinator(setting: str) -> Coordinator | None:
    """The coordinator outside of the store; None when it is the store itself. It connects with its first call. Raises BadSetting."""
    if setting in {"", STORE}:
        return None
    scheme = setting.partition("://")[0]
    if scheme not in SCHEMES or "://" not in setting:
        raise BadSetting("coordinator", scheme, "store, redis://HOST:PORT or etcd://HOST:PORT")
    return SCHEMES[scheme](setting.replace("valkey://", "redis://", 1))
