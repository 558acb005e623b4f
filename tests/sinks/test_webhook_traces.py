"""A webhook belongs to the trace of its task, and every attempt is counted."""

from __future__ import annotations

from onward.service.submission import SubmitRequest
from onward.telemetry import DELIVERIES, counters
from tests.sinks.conftest import Office
from tests.sinks.receiver import Receiver, answer

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}


async def test_the_trace_of_whoever_submitted_goes_along(office: Office, receiver: Receiver) -> None:
    await office.app.subscriptions.make(receiver.url(), ["task.submitted"])
    await office.app.service.submit([SubmitRequest("work", trace=TRACE)], unchecked=True)
    await office.app.service.submit([SubmitRequest("work")], unchecked=True)
    await office.send_all()
    with_trace, without = sorted(receiver.got, key=lambda got: "traceparent" not in got.headers)
    assert {name: with_trace.headers[name] for name in TRACE} == TRACE
    assert "traceparent" not in without.headers


async def test_every_attempt_is_counted(office: Office, receiver: Receiver) -> None:
    counters.on = True
    receiver.says = [answer(500), answer(200), answer(410)]
    await office.complete(webhook=receiver.url())
    await office.send()
    office.time.move(6)
    await office.send()
    await office.complete(webhook=receiver.url())
    await office.send()
    found = {labels: number for (name, labels), number in counters.snapshot()[0].items() if name == DELIVERIES}
    assert found == {("delayed",): 1, ("delivered",): 1, ("failed",): 1}
