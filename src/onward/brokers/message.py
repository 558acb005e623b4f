"""Messages of brokers: reads CloudEvents and plain JSON, and finds the identity of a message.

A CloudEvent comes in one of two forms. In *binary* form its attributes are headers, and the body is its data; each broker has its own prefix
for these headers. In *structured* form the body is one JSON object with the attributes and the data.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from onward.core import wire

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
PREFIXES: Final = ("ce-", "ce_", "cloudevents:", "cloudevents_")
"""Beginnings of the names of headers that are attributes of a CloudEvent: of HTTP and NATS, of Kafka, and of AMQP (two forms)."""
VERSION: Final = "1.0"

MAX_IDENTITY_CHARS: Final = 300
"""Characters of an identity; the hash of a longer one stands for it."""


class Unreadable(Exception):
    """A message that cannot be read; the text says why."""


class Received(NamedTuple):
    """A message as a broker delivered it."""

    headers: Mapping[str, str]
    """With names in lower case."""
    body: bytes
    position: str = ""
    """Where it stands in a stream or topic; empty in a queue, which has no positions."""
    sent_id: str = ""
    """The id that its sender gave it, in the way of the broker (`Nats-Msg-Id`, `message_id` of AMQP)."""
    token: Any = None
    """How the source acknowledges it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """A message that was read. A function of an intake gets it."""

    id: str
    """Its identity: the same when it is delivered again. Use it as `key` of a submit or `id` of a signal, so that it counts once."""
    data: Any
    """Its data: parsed JSON, or a text."""
    headers: Mapping[str, str]
    """With names in lower case."""
    type: str = ""
    """The type of the CloudEvent; empty for other messages."""
    source: str = ""
    """The source of the CloudEvent; empty for other messages."""
    body: bytes = b""
    """The bytes that came."""
    position: str = ""
    """Where it stands in its stream or topic."""


def read(received: Received, own_id: Callable[[Message], str] | None = None) -> Message:
    """The message, with its identity. `own_id` finds the identity in place of the usual rules. Raises Unreadable."""
    message = _read_content(received)
    if own_id is not None:
        return dataclasses.replace(message, id=_checked_id(own_id, message))
    if not message.id:
        raise Unreadable("it has no identity: the queue has no positions, and the message has no id (message_id)")
    return message


def identity_of(received: Received) -> str:
    """The identity of a message from its broker alone: the id of its sender, else its position. Empty where it has neither."""
    if received.sent_id:
        return bounded(f"id:{received.sent_id}")
    return bounded(f"at:{received.position}") if received.position else ""


def identity_of_bytes(received: Received) -> str:
    """An identity for a message without one, for its dead letter: the hash of its bytes."""
    headers = wire.encode(sorted(received.headers.items()))
    return f"sha256:{hashlib.sha256(headers + received.body).hexdigest()}"


def bounded(identity: str) -> str:
    """The identity, or its hash where it is long or has characters that a key cannot have."""
    if len(identity) <= MAX_IDENTITY_CHARS and identity.isprintable():
        return identity
    return f"sha256:{hashlib.sha256(identity.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _checked_id(own_id: Callable[[Message], str], message: Message) -> str:
    try:
        identity = own_id(message)
    except Exception as error:
        raise Unreadable(f"the function for its identity raised {type(error).__name__}: {error}") from None
    if not isinstance(identity, str) or not identity:
        raise Unreadable(f"the function for its identity returned {identity!r:.80}, and not a string")
    return bounded(f"id:{identity}")


def _read_content(received: Received) -> Message:
    headers, content_type = received.headers, ""
    if headers:
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == BATCH:
            raise Unreadable("it is a batch of CloudEvents; send each as a message of its own")
        if content_type == STRUCTURED:
            return _structured(received, _json(received.body))
        attributes = _attributes(headers)
        if "specversion" in attributes:
            return _binary(received, attributes, attributes.get("datacontenttype", content_type))
    data = _data(received.body, content_type)
    if not content_type and _is_event(data):
        return _structured(received, data)
    return Message(identity_of(received), data, headers, body=received.body, position=received.position)


def _attributes(headers: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a CloudEvent that headers hold."""
    return {
        name.removeprefix(prefix): value
        for name, value in headers.items()
        if name.startswith(PREFIXES)
        for prefix in PREFIXES
        if name.startswith(prefix)
    }


def _is_event(value: Any) -> bool:
    return (
        isinstance(value, dict) and "specversion" in value and all(isinstance(value.get(name), str) for name in _NEEDED)
    )


_NEEDED = ("specversion", "id", "source", "type")


def _structured(received: Received, value: Any) -> Message:
    if not isinstance(value, dict):
        raise Unreadable("it is no CloudEvent: the body is not a JSON object")
    attributes = {name: part for name, part in value.items() if isinstance(part, str)}
    data = value.get("data")
    if "data_base64" in value:
        try:
            raw = base64.b64decode(value["data_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Unreadable("data_base64 of the CloudEvent is not base64") from None
        data = _data(raw, attributes.get("datacontenttype", ""))
    return _event(received, attributes, data)


def _binary(received: Received, attributes: Mapping[str, str], content_type: str) -> Message:
    return _event(received, attributes, _data(received.body, content_type.partition(";")[0].strip().lower()))


def _event(received: Received, attributes: Mapping[str, str], data: Any) -> Message:
    if missing := [name for name in _NEEDED if not attributes.get(name)]:
        raise Unreadable(f"it is no CloudEvent: it has no {', '.join(missing)}")
    if attributes["specversion"] != VERSION:
        raise Unreadable(
            f"it is a CloudEvent of version {attributes['specversion']:.20}; this version of Onward reads 1.0"
        )
    identity = bounded(wire.encode([attributes["source"], attributes["id"]]).decode())
    trace = {name: attributes[name] for name in ("traceparent", "tracestate") if name in attributes}
    return Message(
        identity,
        data,
        {**received.headers, **trace},
        attributes["type"],
        attributes["source"],
        received.body,
        received.position,
    )


def _data(body: bytes, content_type: str) -> Any:
    if not body:
        return None
    if content_type.startswith("text/"):
        try:
            return body.decode("utf-8")
        except UnicodeDecodeError:
            raise Unreadable("its text is not UTF-8") from None
    if content_type and content_type not in _JSON_TYPES and not content_type.endswith("+json"):
        raise Unreadable(f"its content is {content_type:.80}; send JSON, or text")
    return _json(body)


_JSON_TYPES = frozenset({"application/json", "application/octet-stream", "binary/octet-stream"})
"""Types under which JSON comes: clients of brokers send the last two for bytes of any kind."""


def _json(body: bytes) -> Any:
    try:
        return wire.parse_foreign(body)
    except ValueError as error:
        raise Unreadable(f"its body is not JSON: {error}") from None
