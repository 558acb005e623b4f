"""Events of programs that know nothing of Onward: the CloudEvents SDK makes them, and the plain client of the broker sends them."""

from __future__ import annotations

from cloudevents.core.bindings import http, kafka, rabbitmq
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from tests.brokers.producers import Producer
from tests.brokers.test_intake import drained, inputs, make_app
from tests.kit import only_file

Parts = tuple[dict[str, str], bytes]


def event(number: int) -> CloudEvent:
    attributes = {
        "id": f"e{number}",
        "source": "/shop/é",
        "type": "order.created",
        "datacontenttype": "application/json",
    }
    return CloudEvent(attributes, {"n": number})


def binary(broker: str, made: CloudEvent) -> Parts:
    if broker == "kafka":
        record = kafka.to_binary(made, JSONFormat())
        return {name: value.decode() for name, value in record.headers.items()}, record.value
    if broker == "rabbitmq":
        message = rabbitmq.to_binary(made, JSONFormat())
        return {**message.headers, "content-type": message.content_type or ""}, message.body
    request = http.to_binary(made, JSONFormat())  # NATS has the same names of headers; Redis has no rules
    return dict(request.headers), request.body


def structured(broker: str, made: CloudEvent) -> Parts:
    if broker == "kafka":
        record = kafka.to_structured(made, JSONFormat())
        return {name: value.decode() for name, value in record.headers.items()}, record.value
    request = http.to_structured(made, JSONFormat())
    return dict(request.headers), request.body


@only_file
async def test_events_of_the_cloudevents_sdk_are_understood(url: str, broker: str, producer: Producer) -> None:
    app = make_app(url, producer)
    app.intake("orders", from_=f"shop/{producer.place}", task={"order.created": "ship"})
    for number in (1, 2, 1):
        headers, body = binary(broker, event(number))
        await producer.send([body], headers)
    for number in (3, 3, 4):
        headers, body = structured(broker, event(number))
        await producer.send([body], headers)
    async with app, app.intakes():
        await drained(app, producer)
        assert await inputs(app) == [1, 2, 3, 4]
        assert await app.store.intakes.letters(limit=10) == []
