"""One conversation in PostgreSQL's wire protocol, overheard: which statement an answer is about, and what is committed.

Bytes in, bytes out; nothing is sent or received here. What the overhearer has to remember:

    asked         what the client has asked and the server not yet answered, in order. The answer to a Query or a Sync
                  ends with ReadyForQuery; before that, each Execute is answered by a CommandComplete of its own
    transaction   every statement completed since the server was last idle. When it says that it is idle again, and no
                  error and no rollback came just before, all these are committed

SQL arrives with Parse, long before the Execute that means it: statement names lead to SQL, portals to the SQL bound.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104


@dataclass(frozen=True)
class Statement:
    """A completed statement: what the server calls it ("INSERT 0 1") and what the client had asked."""

    tag: str
    sql: str

    @property
    def verb(self) -> str:
        return self.tag.partition(" ")[0]


Transaction = list[Statement]


@dataclass(frozen=True)
class _Asked:
    sql: str
    ends_with_ready: bool


class Conversation:
    """`wanted` says whether the answer to a transaction should get lost; `claim` is asked once more, when the answer is
    complete and the transaction committed, and has the last word."""

    def __init__(self, wanted: Callable[[Transaction], bool], claim: Callable[[Transaction], bool]) -> None:
        self._wanted = wanted
        self._claim = claim
        self._started = False
        self._from_client = bytearray()
        self._from_server = bytearray()
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        self._asked: deque[_Asked] = deque()
        self._transaction: Transaction = []
        self._failed = False
        self._held = bytearray()

    def client_says(self, data: bytes) -> tuple[bytes, bytes]:
        """What to pass on to the server, and what to answer the client in its stead."""
        self._from_client += data
        to_server, to_client = (b"", b"") if self._started else self._start()
        if self._started:
            for message in _messages(self._from_client):
                self._hear_client(message[:1], message[5:])
                to_server += message
        return to_server, to_client

    def server_says(self, data: bytes) -> tuple[bytes, bool]:
        """What to pass on to the client, and whether to cut the connection then, the rest being swallowed."""
        self._from_server += data
        passed = bytearray()
        for message in _messages(self._from_server):
            kind, body = message[:1], message[5:]
            self._hear_server(kind, body)
            if kind == b"Z" and self._is_lost(idle=body == b"I"):
                return bytes(passed), True
            if self._held or (kind == b"C" and self._may_get_lost()):
                self._held += message
            else:
                passed += message
            if kind == b"Z":
                passed += self._held
                self._held.clear()
        return bytes(passed), False

    def _start(self) -> tuple[bytes, bytes]:
        """Before any message with a type come requests for encryption, which we decline, and the startup packet."""
        refusals = b""
        while len(self._from_client) >= 8:
            length, code = struct.unpack_from("!ii", self._from_client)
            if len(self._from_client) < length:
                break
            packet = bytes(self._from_client[:length])
            del self._from_client[:length]
            if code not in (SSL_REQUEST, GSS_REQUEST):
                self._started = True
                return packet, refusals
            refusals += b"N"
        return b"", refusals

    def _hear_client(self, kind: bytes, body: bytes) -> None:
        match kind:
            case b"P":
                name, sql, _ = body.split(b"\0", 2)
                self._statements[name] = sql.decode(errors="replace")
            case b"B":
                portal, name, _ = body.split(b"\0", 2)
                self._portals[portal] = self._statements.get(name, "")
            case b"E":
                self._asked.append(_Asked(self._portals.get(body.split(b"\0", 1)[0], ""), ends_with_ready=False))
            case b"Q":
                self._asked.append(_Asked(body.rstrip(b"\0").decode(errors="replace"), ends_with_ready=True))
            case b"S" | b"F":
                self._asked.append(_Asked("", ends_with_ready=True))

    def _hear_server(self, kind: bytes, body: bytes) -> None:
        match kind:
            case b"C":
                self._transaction.append(Statement(body.rstrip(b"\0").decode(), self._answered()))
            case b"I" | b"s":
                self._answered()
            case b"E":
                self._failed = True
            case b"Z":
                while self._asked and not self._asked.popleft().ends_with_ready:
                    pass  # an error made the server skip these

    def _answered(self) -> str:
        """The SQL that the server has just finished with; one Query may hold several statements and so stays."""
        if not self._asked:
            return ""
        return self._asked[0].sql if self._asked[0].ends_with_ready else self._asked.popleft().sql

    def _may_get_lost(self) -> bool:
        """Whether to hold the answer back until ReadyForQuery.

        Not if that has not been asked for: a client that only flushes its pipeline waits for this very answer before it
        sends a Sync. It gets the answer, and is cut at ReadyForQuery: still nothing tells it that this is committed.
        """
        return any(asked.ends_with_ready for asked in self._asked) and self._wanted(self._transaction)

    def _is_lost(self, *, idle: bool) -> bool:
        failed, self._failed = self._failed, False
        if not idle:
            return False
        transaction, self._transaction = self._transaction, []
        if failed or not transaction or transaction[-1].verb == "ROLLBACK":
            return False
        return self._claim(transaction)


def _messages(buffer: bytearray) -> Iterator[bytes]:
    """Takes the whole messages out of the buffer: a byte for the type, four for the length of all but that byte."""
    while len(buffer) >= 5 and len(buffer) > (length := struct.unpack_from("!i", buffer, 1)[0]):
        message = bytes(buffer[: length + 1])
        del buffer[: length + 1]
        yield message
