"""The listener on the wire returns every byte it was given, however they are cut up."""

from __future__ import annotations

import struct

from rig.wire import Conversation, Transaction


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


STARTUP = struct.pack("!ii", 8, 196608)
SSL = struct.pack("!ii", 8, 80877103)
EXECUTE = message(b"P", b"s\0INSERT\0\0\0") + message(b"B", b"\0s\0...") + message(b"E", b"\0....") + message(b"S")
INSERTED = message(b"1") + message(b"2") + message(b"C", b"INSERT 0 1\0") + message(b"Z", b"I")


def never(transaction: Transaction) -> bool:
    return False


def always(transaction: Transaction) -> bool:
    return True


def test_byte_by_byte() -> None:
    conversation = Conversation(never, never)
    to_server = to_client = b""
    for byte in SSL + STARTUP + EXECUTE:
        server, client = conversation.client_says(bytes([byte]))
        to_server += server
        to_client += client
    assert (to_server, to_client) == (STARTUP + EXECUTE, b"N")
    assert b"".join(conversation.server_says(bytes([byte]))[0] for byte in INSERTED) == INSERTED


def test_an_answer_held_back_and_not_claimed_is_given_whole() -> None:
    conversation = Conversation(always, never)
    conversation.client_says(STARTUP + EXECUTE)
    assert conversation.server_says(INSERTED[:-6]) == (message(b"1") + message(b"2"), False)
    assert conversation.server_says(INSERTED[-6:]) == (INSERTED[10:], False)


def test_an_answer_to_a_flush_is_not_held_back() -> None:
    conversation = Conversation(always, always)
    conversation.client_says(STARTUP + EXECUTE[:-5] + message(b"H"))
    assert conversation.server_says(INSERTED[:-6]) == (INSERTED[:-6], False)
    conversation.client_says(message(b"S"))
    assert conversation.server_says(INSERTED[-6:]) == (b"", True)


def test_the_statements_of_a_transaction_and_their_sql() -> None:
    transactions: list[Transaction] = []

    def listen(transaction: Transaction) -> bool:
        transactions.append(transaction)
        return False

    conversation = Conversation(never, listen)
    conversation.client_says(STARTUP + message(b"Q", b"BEGIN\0") + EXECUTE + message(b"Q", b"one; two\0"))
    conversation.server_says(message(b"C", b"BEGIN\0") + message(b"Z", b"T"))
    conversation.server_says(INSERTED[:-1] + b"T")
    conversation.server_says(message(b"C", b"UPDATE 3\0") + message(b"C", b"COMMIT\0") + message(b"Z", b"I"))
    assert [[(statement.verb, statement.sql) for statement in transaction] for transaction in transactions] == [
        [("BEGIN", "BEGIN"), ("INSERT", "INSERT"), ("UPDATE", "one; two"), ("COMMIT", "one; two")]
    ]
