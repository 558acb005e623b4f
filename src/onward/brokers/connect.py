"""Finds the module of a broker by the scheme of its URL. Clients of brokers are extras: each is imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from onward.brokers.port import Source
from onward.core.clock import Clock
from onward.errors import BadSetting, UsageError

if TYPE_CHECKING:
    from onward.brokers.redis_cache import RedisCache

EXTRAS = {
    "redis": "redis",
    "rediss": "redis",
    "valkey": "redis",
    "nats": "nats",
    "tls": "nats",
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "kafka": "kafka",
}
"""The extra with the client for each scheme."""


def split_place(where: str, brokers: Mapping[str, str]) -> tuple[str, str]:
    """The broker and the place of `BROKER/PLACE`. Raises BadSetting."""
    broker, slash, place = where.partition("/")
    if not slash or not place or not place.isprintable() or len(place) > 255:
        raise BadSetting("the place of an intake", where, "BROKER/PLACE, as in orders/ORDERS")
    if broker not in brokers:
        known = ", ".join(sorted(brokers)) or "none"
        raise BadSetting(
            "the broker of an intake",
            broker,
            f"one of the brokers of this app ({known}); name it with brokers={{{broker!r}: URL}} or ONWARD_BROKER_{broker.upper()}",
        )
    scheme_of(broker, brokers[broker])
    return broker, place


def scheme_of(broker: str, url: str) -> str:
    """The scheme of the URL of a broker. Raises BadSetting."""
    scheme = url.partition("://")[0].lower()
    if scheme not in EXTRAS:
        raise BadSetting(f"the URL of broker {broker}", f"{scheme}://…", f"of one of these: {', '.join(EXTRAS)}")
    return scheme


def open_source(broker: str, url: str, place: str, group: str, consumer: str, clock: Clock) -> Source:
    """The source of an intake. Raises UsageError when its client is not installed."""
    scheme = scheme_of(broker, url)
    extra = EXTRAS[scheme]
    try:
        if extra == "redis":
            from onward.brokers.redis import RedisSource  # noqa: PLC0415 -- an extra

            return RedisSource(broker, url, place, group, consumer, clock)
        if extra == "nats":
            from onward.brokers.nats import NatsSource  # noqa: PLC0415 -- an extra

            return NatsSource(broker, url, place, group, consumer, clock)
        if extra == "kafka":
            from onward.brokers.kafka import KafkaSource  # noqa: PLC0415 -- an extra

            return KafkaSource(broker, url, place, group, consumer, clock)
        from onward.brokers.rabbitmq import RabbitSource  # noqa: PLC0415 -- an extra

        return RabbitSource(broker, url, place, consumer)
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'onward[{extra}]'") from None


def open_cache(broker: str, brokers: Mapping[str, str]) -> RedisCache:
    """The cache at a broker. Raises BadSetting for a broker that cannot be one, and UsageError when its client is not installed."""
    if broker not in brokers or EXTRAS[scheme_of(broker, brokers[broker])] != "redis":
        raise BadSetting("cache", broker, "memory, or the name of a broker of redis://")
    try:
        from onward.brokers.redis_cache import RedisCache  # noqa: PLC0415 -- an extra
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'onward[redis]'") from None
    return RedisCache(broker, brokers[broker])
