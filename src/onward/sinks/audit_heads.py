"""Heads of the audit log, exported: to a file, to syslog, or to a URL.

A chain of hashes cannot prove its own end: the last entries can be removed, and the rest is sound. A head that was noted outside of the
database proves that the entry existed (`onward audit verify --head`). The exporter reads the head at an interval and when the process
stops, and writes it to each outlet when it has changed. An outlet that fails, or hangs, holds up nothing: the log and a metric
say so, and the next head is tried. A later head covers all entries before it, so a head that was not exported need not be sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import logging.handlers
import os
import urllib.parse
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from onward.core import wire
from onward.core.audit import Head
from onward.core.clock import Clock
from onward.core.event import PREFIX
from onward.core.shutdown import end_tasks
from onward.core.text import iso
from onward.engine.background import spawn
from onward.engine.shift.threads import Threads
from onward.errors import BadSetting
from onward.sinks.webhook import Webhooks
from onward.store.shared.audit import Audit
from onward.telemetry import AUDIT_HEADS, counters

log = logging.getLogger("onward.audit")

EXPORT_TIMEOUT_S = 20.0
"""Seconds that one outlet has for one head."""

STOP_TIMEOUT_S = 5.0
"""Seconds that the stop of a process waits for the exporter, and for the last head."""

SYSLOG_PORT = 514
SYSLOG_SOCKETS = ("/dev/log", "/var/run/syslog")
"""The sockets of the local syslog on Linux and macOS."""

EVENT_TYPE: Final = f"{PREFIX}audit.head"
_WANTED = "paths (/PATH, ./PATH, file:///PATH), syslog, syslog://HOST:PORT and https:// addresses, with spaces between"


class NotExported(Exception):
    """An outlet did not take a head."""


class Outlet(Protocol):
    """A place outside of the database that keeps heads."""

    name: str
    """`file`, `syslog` or `webhook`, with its address: for the log."""

    async def write(self, head: Head, at: float) -> None:
        """Write one head. Raises any exception when that failed."""
        ...

    def close(self) -> None:
        """Release its thread."""
        ...


class FileOutlet:
    """Appends a line to a file: the time and the head."""

    def __init__(self, path: Path, threads: Threads) -> None:
        self.name, self._path, self._threads = f"file {path}", path, threads

    async def write(self, head: Head, at: float) -> None:
        await self._threads.run(self._append, f"{iso(at)} {head}\n".encode())

    def close(self) -> None:
        self._threads.close()

    def _append(self, line: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(file, line) != len(line):
                raise NotExported("only a part of the line was written")
            os.fsync(file)
        finally:
            os.close(file)


class SyslogOutlet:
    """Sends a message to syslog: a local socket, or UDP."""

    def __init__(self, address: str | tuple[str, int], threads: Threads) -> None:
        self.name, self._address, self._threads = f"syslog {address}", address, threads

    async def write(self, head: Head, at: float) -> None:  # noqa: ARG002 -- syslog has a time of its own
        await self._threads.run(self._send, f"audit head {head}")

    def close(self) -> None:
        self._threads.close()

    def _send(self, text: str) -> None:
        handler = _StrictSysLogHandler(self._address, facility=logging.handlers.SysLogHandler.LOG_AUTHPRIV)
        handler.ident, handler.append_nul = "onward: ", False
        try:
            handler.emit(logging.LogRecord(log.name, logging.WARNING, "", 0, text, None, None))
        finally:
            handler.close()


class _StrictSysLogHandler(logging.handlers.SysLogHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 -- the name of the library
        raise  # noqa: PLE0704 -- `emit` calls this while it handles the error


class WebhookOutlet:
    """Sends a signed event to a URL, in the same form as all webhooks."""

    def __init__(self, url: str, webhooks: Webhooks) -> None:
        self._url, self._webhooks = url, webhooks
        self._lane = webhooks.check(url, own=False)
        self.name = f"webhook {url.partition('?')[0]}"

    async def write(self, head: Head, at: float) -> None:
        id_ = f"audit.{head.number}.{head.hash[-16:]}"
        event = {
            "specversion": "1.0",
            "id": id_,
            "source": "/onward/audit",
            "type": EVENT_TYPE,
            "subject": str(head.number),
            "time": iso(at),
            "datacontenttype": "application/json",
            "data": {"number": head.number, "hash": head.hash, "head": str(head)},
        }
        result = await self._webhooks.send(self._lane, "", id_, self._url, wire.encode(event, "an event"))
        if not result.ok:
            raise NotExported(result.detail)

    def close(self) -> None:
        """It has no thread."""


def parse_outlets(setting: str, webhooks: Callable[[], Webhooks]) -> list[Outlet]:
    """The outlets that a setting names. Raises BadSetting and BadWebhook."""
    return [_parse_outlet(word, webhooks) for word in setting.replace(",", " ").split()]


def file_outlets(setting: str) -> list[Path]:
    """The files that a setting names."""
    return [path for word in setting.replace(",", " ").split() if (path := _file_path(word)) is not None]


def _file_path(word: str) -> Path | None:
    url = urllib.parse.urlsplit(word)
    if url.scheme == "file" and not url.netloc and url.path.strip("/"):
        return Path(urllib.parse.unquote(url.path))
    return Path(word) if word.startswith(("/", "./", "../")) else None


def _parse_outlet(word: str, webhooks: Callable[[], Webhooks]) -> Outlet:
    url = urllib.parse.urlsplit(word)
    if word == "syslog" or url.scheme == "syslog":
        return SyslogOutlet(_syslog_address(word, url), Threads())
    if url.scheme in {"http", "https"}:
        return WebhookOutlet(word, webhooks())
    if (path := _file_path(word)) is not None:
        return FileOutlet(path, Threads())
    raise BadSetting("audit_heads", word.partition("?")[0], _WANTED)


def _syslog_address(word: str, url: urllib.parse.SplitResult) -> str | tuple[str, int]:
    if url.path.strip("/"):
        return urllib.parse.unquote(url.path)
    try:
        if url.hostname:
            return url.hostname, url.port or SYSLOG_PORT
    except ValueError:
        raise BadSetting("audit_heads", word, _WANTED) from None
    return next((path for path in SYSLOG_SOCKETS if os.path.exists(path)), SYSLOG_SOCKETS[0])  # noqa: PTH110


class HeadExporter:
    """Writes the head of the audit log to outlets, each head once to each."""

    def __init__(self, audit: Audit, outlets: Sequence[Outlet], clock: Clock, interval_s: float) -> None:
        self._audit, self._outlets, self._clock, self._interval_s = audit, outlets, clock, interval_s
        self._exported: dict[Outlet, Head] = {}
        self._last: Head | None = None
        self._writing: dict[Outlet, asyncio.Task[None]] = {}
        """Outlets that still write a head."""

    async def run(self) -> None:
        """Export for ever."""
        while True:
            await self.export()
            await self._clock.sleep(self._interval_s)

    async def export(self) -> None:
        """Write the head to each outlet that does not have it yet. Never raises."""
        try:
            head = await self._audit.head()
            await self._check_last(head)
        except Exception as error:
            log.warning("the head of the audit log cannot be read, trying again in %g s: %s", self._interval_s, error)
            counters.add(AUDIT_HEADS, "unread")
            return
        if head.number:
            await asyncio.gather(*(self._write(outlet, head) for outlet in self._outlets))

    def close(self) -> None:
        """Release the threads of the outlets."""
        for outlet in self._outlets:
            outlet.close()

    async def _check_last(self, head: Head) -> None:
        """Log it when the log no longer has the entry that was its head at the last time."""
        last, self._last = self._last, head
        if last is None or not last.number or last == head:
            return
        entries = await self._audit.entries(last.number - 1, 1)
        if not entries or (entries[0].number, entries[0].hash) != last:
            log.error(
                "the audit log no longer has entry %s, which it had before: it was cut off or replaced, or the database was restored; "
                "`onward audit verify --head %s` says more",
                last.number,
                last,
            )
            counters.add(AUDIT_HEADS, "gone")

    async def _write(self, outlet: Outlet, head: Head) -> None:
        if self._exported.get(outlet) == head:
            return
        try:
            await self._write_in_time(outlet, head)
        except Exception as error:
            why = str(error) or type(error).__name__
            log.warning("the audit head %s was not exported to %s: %s", head, outlet.name, why)
            counters.add(AUDIT_HEADS, "failed")
        else:
            self._exported[outlet] = head
            counters.add(AUDIT_HEADS, "exported")

    async def _write_in_time(self, outlet: Outlet, head: Head) -> None:
        """An outlet that hangs keeps its one task, and gets no second one."""
        if (earlier := self._writing.get(outlet)) is not None:
            await asyncio.wait({earlier}, timeout=EXPORT_TIMEOUT_S)
            if outlet in self._writing:
                raise NotExported("it still writes an earlier head")
        writing = self._writing[outlet] = spawn(outlet.write(head, self._clock.now()), "onward-audit-head")
        writing.add_done_callback(lambda task: self._ended(outlet, task))
        if not (await asyncio.wait({writing}, timeout=EXPORT_TIMEOUT_S))[0]:
            raise NotExported(f"no answer within {EXPORT_TIMEOUT_S:g} s")
        writing.result()

    def _ended(self, outlet: Outlet, task: asyncio.Task[None]) -> None:
        del self._writing[outlet]
        task.cancelled() or task.exception()  # read, so that asyncio does not log it


@contextlib.asynccontextmanager
async def exporting(exporter: HeadExporter) -> AsyncIterator[None]:
    """Export heads while the block lasts, and once more at its end."""
    chore = spawn(exporter.run(), "onward-audit-heads")
    try:
        yield
    finally:
        await end_tasks([chore], STOP_TIMEOUT_S, log, "the export of audit heads")
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await exporter.export()
        except TimeoutError:
            log.warning("the last audit head was not exported to all outlets within %g s", STOP_TIMEOUT_S)
        exporter.close()
