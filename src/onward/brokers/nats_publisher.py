"""NATS JetStream as a way out.

The server acknowledges an event when the stream has it. It leaves out a repeat whose `Nats-Msg-Id` it knows, within the duplicate window of
the stream (two minutes unless the stream says otherwise).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from onward.brokers.options import client_url
from onward.brokers.publishing import Publication, in_order
from onward.engine.worker.sinks import SendResult
from onward.errors import UsageError

CONNECT_TIMEOUT_S = 5.0

TOO_LARGE = 10054
"""The code with which a stream refuses a message that is larger than it takes."""

NO_RESPONDERS = "503"


class NatsPublisher:
    """One subject, which a stream must take. All acknowledgements come through one subscription."""

    def __init__(self, url: str, place: str) -> None:
        self._url, self._subject = client_url(url), place
        self._client: Client | None = None
        self._inbox = ""
        self._numbers = itertools.count()
        self._awaited: dict[str, asyncio.Future[Msg]] = {}
        self._gone: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Connect, and see that a stream takes the subject."""
        self._gone = asyncio.get_running_loop().create_future()
        client = self._client = await nats.connect(
            self._url,
            name="onward",
            allow_reconnect=False,  # the relay connects again, after it has let go of what it sent
            connect_timeout=CONNECT_TIMEOUT_S,
            max_reconnect_attempts=1,
            closed_cb=self._closed,
            disconnected_cb=self._closed,
            error_cb=_ignore,
        )
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._acknowledged)
        try:
            await client.jetstream().find_stream_name_by_subject(self._subject)
        except nats.js.errors.NotFoundError:
            raise UsageError(_missing(self._subject)) from None
        except nats.js.errors.Error:
            pass  # a client that may publish need not be allowed to look; the first event shows what is wrong

    async def send(self, batch: Sequence[Publication]) -> list[SendResult]:
        """Send tasks side by side, and await every acknowledgement."""
        assert self._gone is not None
        return await in_order(batch, self._send_one, self._gone)

    async def _send_one(self, publication: Publication) -> SendResult:
        assert self._client is not None
        reply = f"{self._inbox}.{next(self._numbers)}"
        acknowledged = self._awaited[reply] = asyncio.get_running_loop().create_future()
        headers = {"Nats-Msg-Id": publication.id, **publication.headers}
        try:
            await self._client.publish(self._subject, publication.body, reply=reply, headers=headers)
            return self._result(await acknowledged)
        except nats.errors.MaxPayloadError:
            return SendResult(False, f"it has {len(publication.body):,} bytes; the server takes less", refused=True)
        finally:
            self._awaited.pop(reply, None)

    def _result(self, message: Msg) -> SendResult:
        if (message.headers or {}).get("Status") == NO_RESPONDERS:
            return SendResult(False, _missing(self._subject), down=True)
        try:
            answer: Any = json.loads(message.data)
            error, taken = answer.get("error"), answer.get("stream")
        except (ValueError, AttributeError):
            error, taken = None, None
        if error is None and taken:
            return SendResult(True, "known already" if answer.get("duplicate") else f"{taken} {answer.get('seq')}")
        code = error.get("err_code") if isinstance(error, dict) else None
        why = error.get("description") if isinstance(error, dict) else "its answer is no acknowledgement of a stream"
        return SendResult(False, f"NATS: {why} ({code})", down=code != TOO_LARGE, refused=code == TOO_LARGE)

    async def _acknowledged(self, message: Msg) -> None:
        awaited = self._awaited.get(message.subject)
        if awaited is not None and not awaited.done():
            awaited.set_result(message)

    async def _closed(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            await self._client.close()


async def _ignore(error: Exception) -> None:
    """The client reports the error to the call that it belongs to."""


def _missing(subject: str) -> str:
    return f"no JetStream stream takes the subject {subject!r}; make one: nats stream add NAME --subjects {subject!r} --dupe-window 1h"
